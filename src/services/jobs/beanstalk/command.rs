//! The commands of beanstalkd's protocol, as their lines say them.
//!
//! A word may have more behind it where beanstalkd 1.12 reads no further: `quitter` is quit, and `reserve-with-timeout 5x`
//! waits for five seconds. This server answers each line in the same way.
//!
//! This module reads no bodies and carries nothing out.

/// The most bytes of a name of a tube.
pub(super) const TUBE_BYTES_MAX: usize = 200;

/// What a line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command<'l> {
    Put(PutLine),
    Peek(u64),
    PeekReady,
    PeekDelayed,
    PeekBuried,
    Reserve,
    /// Seconds. `None`: for ever.
    ReserveWithTimeout(Option<u32>),
    ReserveJob(u64),
    Delete(u64),
    Release {
        id: u64,
        class: u32,
        /// Seconds.
        delay: u32,
    },
    Use(&'l [u8]),
    Watch(&'l [u8]),
    Ignore(&'l [u8]),
    Bury {
        id: u64,
        class: u32,
    },
    Kick(u64),
    KickJob(u64),
    Touch(u64),
    Stats,
    StatsJob(u64),
    StatsTube(&'l [u8]),
    ListTubes,
    ListTubeUsed,
    ListTubesWatched,
    PauseTube {
        tube: &'l [u8],
        /// Seconds.
        delay: u32,
    },
    Quit,
    Auth {
        name: &'l [u8],
        password: &'l [u8],
    },
}

/// The line of a put. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PutLine {
    pub(super) class: u32,
    pub(super) delay: u32,
    pub(super) lease: u32,
    /// The bytes of the body.
    pub(super) bytes: u32,
    /// Whether something stands behind them. A body that is too long is skipped all the same.
    pub(super) has_more: bool,
}

/// A command in the figures of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Put,
    Peek,
    PeekReady,
    PeekDelayed,
    PeekBuried,
    Reserve,
    ReserveWithTimeout,
    Delete,
    Release,
    Use,
    Watch,
    Ignore,
    Bury,
    Kick,
    Touch,
    Stats,
    StatsJob,
    StatsTube,
    ListTubes,
    ListTubeUsed,
    ListTubesWatched,
    PauseTube,
    /// From here on without a line in the answer to `stats`.
    ReserveJob,
    KickJob,
    Quit,
    Auth,
    /// A line that is no command.
    None,
}

impl Verb {
    /// All of them, in the order of the figures.
    pub(super) const ALL: [Self; 27] = [
        Self::Put,
        Self::Peek,
        Self::PeekReady,
        Self::PeekDelayed,
        Self::PeekBuried,
        Self::Reserve,
        Self::ReserveWithTimeout,
        Self::Delete,
        Self::Release,
        Self::Use,
        Self::Watch,
        Self::Ignore,
        Self::Bury,
        Self::Kick,
        Self::Touch,
        Self::Stats,
        Self::StatsJob,
        Self::StatsTube,
        Self::ListTubes,
        Self::ListTubeUsed,
        Self::ListTubesWatched,
        Self::PauseTube,
        Self::ReserveJob,
        Self::KickJob,
        Self::Quit,
        Self::Auth,
        Self::None,
    ];
    /// Those with a line in the answer to `stats`.
    pub(super) const LISTED: usize = 22;

    /// The word of its line.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Peek => "peek",
            Self::PeekReady => "peek-ready",
            Self::PeekDelayed => "peek-delayed",
            Self::PeekBuried => "peek-buried",
            Self::Reserve => "reserve",
            Self::ReserveWithTimeout => "reserve-with-timeout",
            Self::ReserveJob => "reserve-job",
            Self::Delete => "delete",
            Self::Release => "release",
            Self::Use => "use",
            Self::Watch => "watch",
            Self::Ignore => "ignore",
            Self::Bury => "bury",
            Self::Kick => "kick",
            Self::KickJob => "kick-job",
            Self::Touch => "touch",
            Self::Stats => "stats",
            Self::StatsJob => "stats-job",
            Self::StatsTube => "stats-tube",
            Self::ListTubes => "list-tubes",
            Self::ListTubeUsed => "list-tube-used",
            Self::ListTubesWatched => "list-tubes-watched",
            Self::PauseTube => "pause-tube",
            Self::Quit => "quit",
            Self::Auth => "auth",
            Self::None => "none",
        }
    }

    /// Its place among all.
    pub(super) const fn number(self) -> usize {
        self as usize
    }
}

/// Why a line is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineFault {
    Unknown,
    Malformed,
}

/// The words with arguments, each with its space. The longer ones first where one begins another.
const WITH_ARGUMENTS: [(&[u8], Verb); 18] = [
    (b"put ", Verb::Put),
    (b"peek ", Verb::Peek),
    (b"reserve-with-timeout ", Verb::ReserveWithTimeout),
    (b"reserve-job ", Verb::ReserveJob),
    (b"delete ", Verb::Delete),
    (b"release ", Verb::Release),
    (b"bury ", Verb::Bury),
    (b"kick ", Verb::Kick),
    (b"kick-job ", Verb::KickJob),
    (b"touch ", Verb::Touch),
    (b"stats-job ", Verb::StatsJob),
    (b"stats-tube ", Verb::StatsTube),
    (b"use ", Verb::Use),
    (b"watch ", Verb::Watch),
    (b"ignore ", Verb::Ignore),
    (b"pause-tube", Verb::PauseTube),
    (b"quit", Verb::Quit),
    (b"auth ", Verb::Auth),
];

/// The words that stand alone.
const ALONE: [(&[u8], Verb, Command<'static>); 8] = [
    (b"peek-ready", Verb::PeekReady, Command::PeekReady),
    (b"peek-delayed", Verb::PeekDelayed, Command::PeekDelayed),
    (b"peek-buried", Verb::PeekBuried, Command::PeekBuried),
    (b"reserve", Verb::Reserve, Command::Reserve),
    (b"stats", Verb::Stats, Command::Stats),
    (b"list-tubes-watched", Verb::ListTubesWatched, Command::ListTubesWatched),
    (b"list-tube-used", Verb::ListTubeUsed, Command::ListTubeUsed),
    (b"list-tubes", Verb::ListTubes, Command::ListTubes),
];

/// Reads a line without its end.
pub(super) fn read_line(line: &[u8]) -> Result<(Verb, Command<'_>), LineFault> {
    if line.contains(&0) {
        return Err(LineFault::Malformed);
    }
    if let Some(&(word, verb)) = WITH_ARGUMENTS.iter().find(|(word, _)| line.starts_with(word)) {
        let rest = line.get(word.len()..).unwrap_or_default();
        return of_arguments(verb, rest).map(|command| (verb, command)).ok_or(LineFault::Malformed);
    }
    let (word, verb, command) = ALONE.iter().find(|(word, ..)| line.starts_with(word)).ok_or(LineFault::Unknown)?;
    if line.len() == word.len() { Ok((*verb, *command)) } else { Err(LineFault::Malformed) }
}

fn of_arguments(verb: Verb, rest: &[u8]) -> Option<Command<'_>> {
    let mut fields = Fields(rest);
    Some(match verb {
        Verb::Put => {
            let (class, delay, lease) = (fields.number()?, fields.number()?, fields.number()?);
            Command::Put(PutLine { class, delay, lease, bytes: fields.number()?, has_more: !fields.is_over() })
        }
        Verb::Peek => Command::Peek(fields.last()?),
        Verb::ReserveWithTimeout => Command::ReserveWithTimeout(fields.seconds()?),
        Verb::ReserveJob => Command::ReserveJob(fields.last()?),
        Verb::Delete => Command::Delete(fields.last()?),
        Verb::Release => Command::Release { id: fields.number()?, class: fields.number()?, delay: fields.last()? },
        Verb::Bury => Command::Bury { id: fields.number()?, class: fields.last()? },
        Verb::Kick => Command::Kick(fields.bound()?),
        Verb::KickJob => Command::KickJob(fields.last()?),
        Verb::Touch => Command::Touch(fields.last()?),
        Verb::StatsJob => Command::StatsJob(fields.last()?),
        Verb::StatsTube => Command::StatsTube(tube(rest)?),
        Verb::Use => Command::Use(tube(rest)?),
        Verb::Watch => Command::Watch(tube(rest)?),
        Verb::Ignore => Command::Ignore(tube(rest)?),
        Verb::PauseTube => Command::PauseTube { tube: fields.word().and_then(tube)?, delay: fields.last()? },
        Verb::Auth => {
            let space = rest.iter().position(|byte| *byte == b' ')?;
            let (name, password) = rest.split_at(space);
            Command::Auth { name, password: password.get(1..)? }
        }
        _ => Command::Quit,
    })
}

/// A name that a tube may have.
pub(super) fn tube(name: &[u8]) -> Option<&[u8]> {
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-+/;.$_()".contains(byte);
    let is_good = (1..=TUBE_BYTES_MAX).contains(&name.len()) && !name.starts_with(b"-") && name.iter().all(is_of_name);
    is_good.then_some(name)
}

/// The fields of a line.
struct Fields<'l>(&'l [u8]);

impl<'l> Fields<'l> {
    fn skip_spaces(&mut self) {
        let spaces = self.0.iter().take_while(|byte| **byte == b' ').count();
        self.0 = self.0.get(spaces..).unwrap_or_default();
    }

    fn digits(&mut self) -> Option<&'l [u8]> {
        let length = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at_checked(length).filter(|(digits, _)| !digits.is_empty())?;
        self.0 = rest;
        Some(digits)
    }

    /// The next number.
    fn number<N: TryFrom<u64>>(&mut self) -> Option<N> {
        self.skip_spaces();
        let digits = std::str::from_utf8(self.digits()?).ok()?;
        N::try_from(digits.parse::<u64>().ok()?).ok()
    }

    /// The next number, with nothing behind it.
    fn last<N: TryFrom<u64>>(&mut self) -> Option<N> {
        let number = self.number()?;
        self.is_over().then_some(number)
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next word.
    fn word(&mut self) -> Option<&'l [u8]> {
        self.skip_spaces();
        let length = self.0.iter().take_while(|byte| **byte != b' ').count();
        let (word, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(word)
    }

    /// Passes white space and a sign. Returns whether that is a minus.
    fn sign(&mut self) -> bool {
        while let [b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r', rest @ ..] = self.0 {
            self.0 = rest;
        }
        let is_negative = self.0.first() == Some(&b'-');
        if let [b'-' | b'+', rest @ ..] = self.0 {
            self.0 = rest;
        }
        is_negative
    }

    /// The bound of a kick, as `strtoul` reads it: with a sign, and anything behind it. The lower half counts.
    fn bound(&mut self) -> Option<u64> {
        let is_negative = self.sign();
        let number = std::str::from_utf8(self.digits()?).ok()?.parse::<u64>().ok()?;
        let bound = if is_negative { number.wrapping_neg() } else { number };
        Some(bound & u64::from(u32::MAX))
    }

    /// The seconds of a wait, as `strtol` reads them: with a sign, and anything behind them; none are 0. The lower half
    /// counts. A negative number is no bound.
    fn seconds(&mut self) -> Option<Option<u32>> {
        let is_negative = self.sign();
        let digits = self.digits().map_or(Some("0"), |digits| std::str::from_utf8(digits).ok())?;
        let number = digits.parse::<i64>().ok()?;
        let number = if is_negative { -number } else { number };
        let [.., a, b, c, d] = number.to_be_bytes();
        Some(u32::try_from(i32::from_be_bytes([a, b, c, d])).ok())
    }
}
