"""A chapter of work by greenstalk and pystalk. What it prints is the same on every server of the protocol.

Usage: beanstalk_python.py HOST PORT
"""

import sys

import greenstalk
from pystalk import BeanstalkClient, BeanstalkError

HOST, PORT = sys.argv[1], int(sys.argv[2])


def with_greenstalk():
    with greenstalk.Client((HOST, PORT), use="green", watch="green") as client:
        client.put("later", priority=9, ttr=100)
        client.put("first", priority=1, ttr=100)
        job = client.reserve()
        print(job.body)
        client.release(job, priority=20)
        job = client.reserve(timeout=1)
        print(job.body)
        client.touch(job)
        client.bury(job)
        print(client.peek_buried().body, client.stats_job(job)["state"], client.stats_tube("green")["current-jobs-buried"])
        print(client.kick(10))
        for _ in range(2):
            job = client.reserve(timeout=1)
            print(job.body)
            client.delete(job)
        try:
            client.reserve(timeout=0)
        except greenstalk.TimedOutError:
            print("timed out")
        try:
            client.delete(job)
        except greenstalk.NotFoundError:
            print("not found")
        try:
            client.put("x" * 70_000)
        except greenstalk.JobTooBigError:
            print("too big")
        delayed = client.put("delayed", delay=1000)
        print(client.peek_delayed().body, client.stats_job(delayed)["delay"])
        client.kick_job(delayed)
        print(client.reserve_job(delayed).body)
        client.delete(delayed)
        client.pause_tube("green", 0)
        print(client.using(), client.watching(), sorted(client.tubes()))
        print(client.stats()["current-jobs-ready"])


def with_pystalk():
    client = BeanstalkClient(HOST, PORT)
    client.watch("py")
    with client.using("py") as inserter:
        for number in range(3):
            inserter.put_job(f"job {number}", pri=number)
    for number in range(3):
        job = client.reserve_job(1)
        print(job.job_data)
        client.delete_job(job.job_id)
    try:
        client.reserve_job(0)
    except BeanstalkError as error:
        print(error.message)
    print(client.stats_tube("py")["current-jobs-ready"], "py" in client.list_tubes())
    client.close()


with_greenstalk()
with_pystalk()
