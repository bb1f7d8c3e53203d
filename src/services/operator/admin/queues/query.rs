//! The parameters of a request: what is behind the `?` of its path, as bytes.
//!
//! ```text
//! queue=mail&group=%ff&most=10        each name once, and no name that the path does not have
//! ```
//! This module knows no path.

/// The parameters of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parameters(Vec<(String, Vec<u8>)>);

impl Parameters {
    /// Reads the parameters of a path that has these.
    ///
    /// # Errors
    /// What is wrong, in a sentence.
    pub(super) fn read(query: Option<&str>, known: &[&str]) -> Result<Self, String> {
        let mut read: Vec<(String, Vec<u8>)> = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.contains(&name) {
                let name = name.escape_debug();
                return Err(format!("there is no parameter {name}: there are {}", known.join(", ")));
            }
            if read.iter().any(|(other, _)| other == name) {
                return Err(format!("the parameter {name} is there twice"));
            }
            let value = decoded(value).ok_or_else(|| format!("{name}: two hexadecimal digits come after %"))?;
            read.push((name.to_owned(), value));
        }
        Ok(Self(read))
    }

    /// The bytes of a parameter, if it is there.
    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| &**value)
    }

    /// The text of a parameter, if it is there.
    ///
    /// # Errors
    /// If it is no text.
    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, String> {
        let text = self.bytes(name).map(std::str::from_utf8).transpose();
        text.map_err(|_| format!("{name} is text in UTF-8"))
    }

    /// The number in a parameter, or this one.
    ///
    /// # Errors
    /// If it is no number.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str, otherwise: T) -> Result<T, String> {
        let number = self.text(name)?.map(|text| text.parse().map_err(|_| format!("{name} is a whole number")));
        number.unwrap_or(Ok(otherwise))
    }
}

/// The bytes of a parameter. Neither a plus nor any other sign but the percent is special.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_byte = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_byte)?);
        bytes.extend(rest.as_bytes());
    }
    Some(bytes)
}

/// A parameter for a path, with the sign before it: `&name=value`.
pub(crate) fn parameter(name: &str, value: &[u8]) -> String {
    let encoded = value.iter().fold(String::new(), |encoded, byte| {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~,".contains(byte);
        if is_plain { encoded + &char::from(*byte).to_string() } else { encoded + &format!("%{byte:02X}") }
    });
    format!("&{name}={encoded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_comes_back_as_it_was_written() {
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        let read = Parameters::read(Some(&parameter("queue", &bytes)), &["queue"]);
        assert_eq!(read.map(|read| read.bytes("queue").map(<[u8]>::to_vec)), Ok(Some(bytes)));
        assert_eq!(parameter("rate", b"10/s,20"), "&rate=10%2Fs,20");
    }

    #[test]
    fn parameters_are_known_whole_and_there_once() {
        let read = |query| Parameters::read(Some(query), &["queue", "most"]);
        let good = read("queue=a+b%20c&most=7");
        let of =
            |good: &Parameters| (good.bytes("queue").map(<[u8]>::to_vec), good.number("most", 1), good.number("x", 3));
        assert_eq!(good.as_ref().map(of), Ok((Some(b"a+b c".to_vec()), Ok(7), Ok(3))));
        for (query, why) in [
            ("queu=a", "no parameter queu: there are queue, most"),
            ("queue=a&queue=b", "there twice"),
            ("queue=%", "hexadecimal"),
            ("queue=%f", "hexadecimal"),
            ("queue=%zz", "hexadecimal"),
            ("queue=%+f", "hexadecimal"),
        ] {
            assert!(read(query).is_err_and(|error| error.contains(why)), "{query}");
        }
        let wrong = read("queue=%ff&most=-1");
        assert!(wrong.is_ok_and(|wrong| wrong.text("queue").is_err() && wrong.number("most", 1_u32).is_err()));
    }
}
