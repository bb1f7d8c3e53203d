//! Decodes and encodes the line that names a user, before the command of a connection.
//!
//! ```text
//! AUTH <name> <password>\n        or \r\n
//! ```
//! A name has no white space. The password is the rest of the line, spaces included.

use crate::security::limits::{PASSWORD_BYTES_MAX, USER_NAME_BYTES_MAX};

/// The beginning of the line.
const AUTH: &[u8] = b"AUTH ";
/// The longest line, in bytes, with its end.
const AUTH_LINE_BYTES_MAX: usize = AUTH.len() + USER_NAME_BYTES_MAX + 1 + PASSWORD_BYTES_MAX + 2;

/// How complete the line is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum DecodedAuth<'b> {
    /// The line is complete.
    Whole {
        /// The name of the user.
        name: &'b [u8],
        /// Its password.
        password: &'b [u8],
        /// Bytes of the line, with its end.
        length: usize,
    },
    /// The end of the line has not come.
    Short,
    /// There is no such line, and no further byte can change that.
    Wrong,
}

/// It shows no password.
impl std::fmt::Debug for DecodedAuth<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole { name, length, .. } => write!(f, "Whole({}, {length})", name.escape_ascii()),
            Self::Short => f.write_str("Short"),
            Self::Wrong => f.write_str("Wrong"),
        }
    }
}

/// Decodes the line that these bytes begin with.
#[must_use]
pub fn decode_auth(bytes: &[u8]) -> DecodedAuth<'_> {
    let Some(behind) = bytes.strip_prefix(AUTH) else {
        return if AUTH.starts_with(bytes) { DecodedAuth::Short } else { DecodedAuth::Wrong };
    };
    let Some(end) = behind.iter().take(AUTH_LINE_BYTES_MAX).position(|byte| *byte == b'\n') else {
        return if bytes.len() < AUTH_LINE_BYTES_MAX { DecodedAuth::Short } else { DecodedAuth::Wrong };
    };
    let line = behind.get(..end).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut fields = line.splitn(2, |byte| *byte == b' ');
    match (fields.next(), fields.next()) {
        (Some(name), Some(password))
            if (1..=USER_NAME_BYTES_MAX).contains(&name.len()) && password.len() <= PASSWORD_BYTES_MAX =>
        {
            DecodedAuth::Whole { name, password, length: AUTH.len() + end + 1 }
        }
        _ => DecodedAuth::Wrong,
    }
}

/// Appends the line. False, and nothing is appended: no line can say this name or this password.
#[must_use]
pub fn encode_auth(name: &[u8], password: &[u8], out: &mut Vec<u8>) -> bool {
    let line = [AUTH, name, b" ", password, b"\n"].concat();
    let is_sayable = matches!(
        decode_auth(&line),
        DecodedAuth::Whole { name: read, password: said, length } if (read, said, length) == (name, password, line.len())
    );
    if is_sayable {
        out.extend(line);
    }
    is_sayable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_a_user_and_the_command_follows() {
        for (bytes, password, length) in [
            (&b"AUTH ada heron\nGET q\n"[..], &b"heron"[..], 15),
            (b"AUTH ada heron\r\nADD q 1 \n", b"heron", 16),
            (b"AUTH ada two words \n", b"two words ", 20),
            (b"AUTH ada \n", b"", 10),
        ] {
            assert_eq!(decode_auth(bytes), DecodedAuth::Whole { name: b"ada", password, length });
            for cut in 0..length {
                assert_eq!(decode_auth(bytes.get(..cut).unwrap_or_default()), DecodedAuth::Short);
            }
        }
    }

    #[test]
    fn the_longest_name_and_the_longest_password_make_the_longest_line() {
        let (name, password) = ([b'n'; USER_NAME_BYTES_MAX], [b'p'; PASSWORD_BYTES_MAX]);
        let line = |name: &[u8], password: &[u8]| [AUTH, name, b" ", password, b"\r\n"].concat();
        let longest = line(&name, &password);
        assert_eq!(longest.len(), AUTH_LINE_BYTES_MAX);
        assert_eq!(
            decode_auth(&longest),
            DecodedAuth::Whole { name: &name, password: &password, length: longest.len() }
        );
        assert_eq!(decode_auth(longest.get(..longest.len() - 1).unwrap_or_default()), DecodedAuth::Short);
        assert_eq!(decode_auth(&line(&[b'n'; USER_NAME_BYTES_MAX + 1], b"")), DecodedAuth::Wrong);
        assert_eq!(decode_auth(&[b"AUTH ", &[b'x'; AUTH_LINE_BYTES_MAX - 5][..]].concat()), DecodedAuth::Wrong);
    }

    #[test]
    fn anything_else_is_no_such_line_and_is_bounded() {
        let long = [b"AUTH ada ", &[b'x'; PASSWORD_BYTES_MAX + 1][..], b"\n"].concat();
        let endless = [b'x'; AUTH_LINE_BYTES_MAX];
        for bytes in [&b"GET q\n"[..], b"auth ada heron\n", b"AUTH\n", b"AUTH ada\n", b"AUTH  heron\n", &long] {
            assert_eq!(decode_auth(bytes), DecodedAuth::Wrong, "{}", bytes.escape_ascii());
        }
        assert_eq!(decode_auth(&[b"AUTH ", &endless[..]].concat()), DecodedAuth::Wrong);
        assert!(!format!("{:?}", decode_auth(b"AUTH ada heron\n")).contains("heron"));
    }

    #[test]
    fn what_can_be_said_is_read_as_it_was_said() {
        bolero::check!().with_type().for_each(|(name, password): &(Vec<u8>, Vec<u8>)| {
            let mut line = Vec::new();
            if encode_auth(name, password, &mut line) {
                assert_eq!(decode_auth(&line), DecodedAuth::Whole { name, password, length: line.len() });
            }
        });
        let mut line = Vec::new();
        assert!(encode_auth(b"ada", b"a b", &mut line) && line == b"AUTH ada a b\n");
        for (name, password) in [(&b"a b"[..], &b"c"[..]), (b"", b"c"), (b"a", b"c\nd"), (b"a", b"c\r")] {
            // A space in a name would move the rest of it into the password.
            assert!(!encode_auth(name, password, &mut line), "{name:?} {password:?}");
        }
    }
}
