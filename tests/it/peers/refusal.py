"""Refused calls, for the chapters beside this file."""


def refuses(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind:
        return
    raise AssertionError(f"no {kind}")
