//! The known scripts, by their texts and by their digests, which both servers find.
//!
//! A shape has a letter for each argument. No time is short: see `maker`.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use super::{Command, Maker};

/// A digest, the arguments of its script, and the unit of the time that the script returns, or a space.
///
/// Letters: token, other value, milliseconds, seconds, integer, flag. `x` is an option of SET with its time.
const SHAPES: [(&str, &str, char); 41] = [
    ("c3f8721cbb97f72bc19e972846bd7aaf91901658", "t", ' '),
    ("a4e8783852e6b949f9ef3a97212805108459a890", "tmf", ' '),
    ("1cac51482acf5858da00f6d685d68f886cd6b6b2", "tm", ' '),
    ("4e92fdc63815b3a0a2dd1c1df3694de73607c88d", "t", ' '),
    ("c75a9bf1538efcdb1f383acc3e273c5089d57e58", "tm", ' '),
    ("241e4ca540a1cc4ec1f32d9eb9f879e607d7e6e5", "t", ' '),
    ("f908d3f43dbcabc68fc0c9ecaf1fa4a285ecdb0a", "t", 's'),
    ("a4aada0b36710970eedaaaeec4a6b7d8c78c4f80", "t", ' '),
    ("ba015a80261b616e7a62d35df0b8e3edbe6c9414", "tm", ' '),
    ("f5f7bd3a3aa4a63c507c1155c5ea1219b350d992", "t", 'm'),
    ("556429c2d8baca516a475ebb22d380cbccae7313", "i", ' '),
    ("ae3671744a5dbb24ea37ef607b8b10ac7856d43e", "t", ' '),
    ("782e993d12091daacc7a3164ddf5c4624fe56042", "vtx", ' '),
    ("d10461dc5ff043322a9d59734d0285f83706c732", "t", ' '),
    ("b948f76fda6b97319d3426a2fb42b0d4f02c7146", "t", ' '),
    ("0f8a745c1b5efe281bd1299ea0d1b2994c6ae601", "im", ' '),
    ("f4a7da3e5d8ea3b46642af08427151cae0190400", "i", ' '),
    ("4d15273b16b10c15e1d9202cbe93c959ab7d250b", "i", ' '),
    ("0d23cf1ccf81ad1452ccf307e1938d99997a6073", "s", ' '),
    ("628bd136a573a06b346879695681af12ccef300f", "si", ' '),
    ("a3f9e982197e9e887f6b5dcb7ec273863bb83aad", "im", 'm'),
    ("862f31bf38e9b63ce28d6e9e5143551bb34ef981", "tm", ' '),
    ("cf0e94b2e9ffc7e04395cf88f7583fc309985910", "t", ' '),
    ("a7aba3bc5d6e99b3003da8b9d80a63b9f4092ecf", "tm", ' '),
    ("d01fb69e6ecc8bad3ca9bacba9f4f9e96862313f", "tm", ' '),
    ("517e7ed95f00c0c4a209c6a7afcc6ab797d30b85", "t", ' '),
    ("acaf90b4697bb48bb5f603e9e613a54df7536c70", "tm", ' '),
    ("e5a322e2634ef59a516e8ea150cb085afafee684", "tm", ' '),
    ("1d48b4c6fea2cdadc46b3346de5c2eaf121c7bb3", "tm", ' '),
    ("0f0f23b9048b36752b5be114f357ba083449f908", "t", ' '),
    ("ce46f80993d5dac20dd066eb301a4e37994bdbed", "tm", ' '),
    ("96da70f7716f27d278a5218544df37fd8b0a5e4c", "tm", ' '),
    ("e4612211c9f8f51c257e26e056b0a654b3187242", "t", ' '),
    ("aed6f382e410db8ba7926d4e5e9aab410bf2a78a", "tm", ' '),
    ("7157921a7cc7cfba979acf6d63f073151df17d12", "t", ' '),
    ("594683e49a64ebaf975caf5f8079a1d097c438f1", "tm", ' '),
    ("3f424a504987d231baa2e19159bb5def8ad32f87", "fm", 'm'),
    ("81dbecea94d2d10514719b20ed51faf711529d9d", "fm", 'm'),
    ("895b92e1712734e1b464999be23953485475357b", "m", 'm'),
    ("6aeb97ed6086dcdeafdc6fda3999a0d0e38ec96a", "", 'm'),
    ("a1de965f42e177aa339706bd580f049065eca79a", "is", 'm'),
];

/// A known script.
struct Script {
    digest: &'static str,
    shape: &'static str,
    /// The unit of the time that it returns.
    time: Option<Duration>,
    text: Vec<u8>,
}

static SCRIPTS: LazyLock<Vec<Script>> = LazyLock::new(|| {
    let texts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/services/resp/scripts/texts");
    let of_shape = |(digest, shape, unit)| Script {
        digest,
        shape,
        time: match unit {
            's' => Some(Duration::from_secs(1)),
            'm' => Some(Duration::from_millis(1)),
            _ => None,
        },
        text: std::fs::read(texts.join(format!("{digest}.lua"))).expect(digest),
    };
    SHAPES.into_iter().map(of_shape).collect()
});

/// The unit of the time that a script returns.
pub(crate) fn returned_time(command: &Command) -> Option<Duration> {
    let name = command.arguments.get(1)?;
    let is_named = |script: &&Script| script.text == *name || name.eq_ignore_ascii_case(script.digest.as_bytes());
    SCRIPTS.iter().find(is_named)?.time
}

/// A time that is not over already.
fn future(maker: &mut Maker, time: fn(&mut Maker) -> &'static str) -> &'static str {
    loop {
        let time = time(maker);
        if time != "0" && !time.starts_with('-') {
            return time;
        }
    }
}

/// A script on a key, which often has the token, or a number.
pub(crate) fn scripts(maker: &mut Maker) -> Vec<Command> {
    let script = maker.rng.pick(&SCRIPTS.iter().collect::<Vec<_>>());
    let key = maker.key();
    let mut commands = Vec::new();
    if maker.rng.one_in(2) {
        let value = if maker.rng.one_in(2) { b"token".to_vec() } else { maker.integer().into_bytes() };
        let set = Command::new(&["SET"]).with(key.clone()).with(value);
        commands.push(if maker.rng.one_in(2) { set.with("PX").with(maker.millis()) } else { set });
    }
    let by_digest = maker.rng.one_in(3);
    let mut command = match by_digest {
        true => Command::new(&["EVALSHA"]).with(script.digest),
        false => Command::new(&["EVAL"]).with(script.text.clone()),
    };
    // Spindle has them all, and Redis those that were loaded before.
    if by_digest && !maker.rng.one_in(50) {
        commands.push(Command::new(&["SCRIPT", "LOAD"]).with(script.text.clone()));
        commands.push(Command::new(&["SCRIPT", "EXISTS"]).with(script.digest).with("a"));
    }
    // A script that goes through all its keys has several now and then, and one of them twice.
    let takes_all = script.text.windows(4).any(|word| word == b"#KEY" || word == b"(KEY");
    let fault = maker.rng.below(60);
    command = match fault {
        0 => command.with(maker.word(&["2", "3", "-1", "abc", ""])),
        1 => command.with("0"),
        3..30 if takes_all => {
            let count = maker.rng.pick(&[2, 3, 3, 8]);
            let command = command.with(maker.word(match count {
                2 => &["2"],
                3 => &["3"],
                _ => &["8"],
            }));
            (1..count).fold(command.with(key), |command, _| command.with(maker.key()))
        }
        _ => command.with("1").with(key),
    };
    let is_counter = !script.shape.starts_with(['t', 'v']);
    for argument in script.shape.chars() {
        command = match argument {
            't' => command.with(maker.word(&["token", "token", "token", "other", "1"])),
            'v' => command.with(maker.value()),
            'm' if is_counter => command.with(future(maker, Maker::millis)),
            's' if is_counter => command.with(future(maker, Maker::seconds)),
            'm' => command.with(maker.millis()),
            's' => command.with(maker.seconds()),
            'i' => command.with(maker.integer()),
            'f' => command.with(maker.word(&["0", "1", "2"])),
            'x' if maker.rng.one_in(2) => match maker.rng.one_in(2) {
                true => command.with(maker.word(&["PX", "px"])).with(maker.millis()),
                false => command.with(maker.word(&["EX", "FOO"])).with(maker.seconds()),
            },
            _ => command,
        };
    }
    if fault == 2 && command.arguments.len() > 4 {
        command.arguments.pop();
    }
    commands.push(command);
    commands
}
