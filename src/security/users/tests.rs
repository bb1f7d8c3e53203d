//! What the file of users may say, and what is said of a wrong one.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use super::*;

const KEY: &str = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
const OTHER_KEY: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
const CERTIFICATE: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn parsed(text: &str) -> UserList {
    UserList::parse(text).unwrap()
}

#[track_caller]
fn refused(text: &str, line: usize, about: &str) {
    let (at, why) = UserList::parse(text).unwrap_err();
    assert!(at == line && why.contains(about), "{text}\n{at}: {why}");
}

#[test]
fn a_user_has_what_its_section_says() {
    let hash = HashedPassword::of("heron").unwrap();
    let text = format!(
        "# the team\n[ada]\npassword = '{}'\ncurve = '{KEY}'\nread = ['']\nwrite = ['eu-', 'us-']\nown = ['mine']\n\
         tasks = 'write'\njobs-read = ['a']\njobs-write = ['b']\nevents = 'admin'\n[root]\nadmin = true\ncurve = '{OTHER_KEY}'\n",
        hash.text()
    );
    let users = parsed(&text);
    let ada = users.named("ada").unwrap();
    assert!(ada.password.as_ref().unwrap().is_of(b"heron"));
    assert!(Arc::ptr_eq(users.with_key(&KEY.parse().unwrap()).unwrap(), ada));
    let permissions = &ada.permissions;
    assert!(!permissions.admin);
    assert!(permissions.tables.granted(Access::Write).eq([&b"eu-"[..], b"us-"]));
    assert!(permissions.tables.granted(Access::Admin).eq([b"mine"]));
    assert!(permissions.jobs.granted(Access::Read).eq([b"a"]) && permissions.jobs.granted(Access::Write).eq([b"b"]));
    assert_eq!((permissions.tasks, permissions.events), (Some(Access::Write), Some(Access::Admin)));
    assert!(users.named("root").unwrap().permissions.admin);
    assert!(users.named("bob").is_none());
}

#[test]
fn a_certificate_is_one_proof_and_enough() {
    let users = parsed(&format!("[a]\ncertificate = '{CERTIFICATE}'"));
    let certificate = Fingerprint::parse(CERTIFICATE).unwrap();
    assert!(Arc::ptr_eq(users.with_certificate(&certificate).unwrap(), users.named("a").unwrap()));
    assert!(users.with_certificate(&Fingerprint::of(b"another")).is_none());
    assert!(section(users.named("a").unwrap()).contains(&format!("certificate = \"{CERTIFICATE}\"\n")));
}

#[test]
fn what_is_written_is_read() {
    let mut user = User {
        name: "ä\"b\\".to_owned(),
        password: Some(HashedPassword::of("p").unwrap()),
        curve: Some(KEY.parse().unwrap()),
        certificate: Fingerprint::parse(CERTIFICATE),
        permissions: Permissions {
            admin: true,
            tasks: Some(Access::Read),
            events: Some(Access::Write),
            ..Permissions::default()
        },
    };
    user.permissions.tables.grant(Access::Read, b"tab\x01\"]\n");
    user.permissions.tables.grant(Access::Write, b"");
    user.permissions.tables.grant(Access::Admin, b"o");
    user.permissions.jobs.grant(Access::Read, b"r");
    user.permissions.jobs.grant(Access::Write, b"w");
    assert_eq!(**parsed(&section(&user)).named(&user.name).unwrap(), user);
    assert!(section(&user).starts_with("[\"ä\\\"b\\\\\"]\n"), "{}", section(&user));
}

#[test]
fn a_wrong_file_is_refused_with_its_line() {
    let curve = format!("curve = '{KEY}'");
    refused(&format!("[a]\n{curve}\nraed = ['x']"), 3, "did you mean read?");
    refused(&format!("[a]\n{curve}\njobs_write = ['x']"), 3, "did you mean jobs-write?");
    refused(&format!("[a]\n{curve}\ncolour = 1"), 3, "the keys are password, curve,");
    refused("[a]\n\n[b]\n", 1, "no password, no curve key and no certificate");
    refused(&format!("[a]\n{curve}\n[b]\n{curve}"), 3, "the key of \"b\" is that of \"a\"");
    refused(&format!("[a]\n{curve}\n[a]\n{curve}"), 3, "this is no TOML");
    refused("a = 1", 1, "outside of a user");
    refused("[a]\ncurve = 'short'", 2, "public key of 40 characters");
    refused("[a]\ncertificate = 'ba78'", 2, "64 hexadecimal digits");
    refused("[a]\ncertificate = 1", 2, "64 hexadecimal digits");
    let certificate = format!("certificate = '{CERTIFICATE}'");
    let again = format!("certificate = '{}'", CERTIFICATE.to_uppercase());
    refused(&format!("[a]\n{certificate}\n[b]\n{again}"), 3, "the certificate of \"b\" is that of \"a\"");
    refused("[a]\npassword = 'heron'", 2, "no hash of argon2id");
    refused(&format!("[a]\n{curve}\nadmin = 'yes'"), 3, "true or false");
    refused(&format!("[a]\n{curve}\nread = 'x'"), 3, "array of strings");
    refused(&format!("[a]\n{curve}\nread = [1]"), 3, "array of strings");
    refused(&format!("[a]\n{curve}\ntasks = 'all'"), 3, "\"read\", \"write\" or \"admin\"");
    refused(&format!("['a b']\n{curve}"), 1, "no white space");
    refused(&format!("['a:b']\n{curve}"), 1, "no colon");
    refused(&format!("['']\n{curve}"), 1, "1 to 64 bytes");
    refused(&format!("[{}]\n{curve}", "n".repeat(65)), 1, "1 to 64 bytes");
    refused(&format!("[a]\n{curve}\nread = ['{}']", "p".repeat(256)), 3, "more than 255 bytes");
    refused(&format!("[a]\n{curve}\nread = [{}]", "'p',".repeat(65)), 3, "more than 64 prefixes");
    refused(&format!("[a]\n{curve}\nread = [\"p\\u0000\"]"), 3, "a prefix has a NUL");
    refused("[a", 1, "this is no TOML");
}

#[test]
fn the_bounds_themselves_are_within() {
    let curve = format!("curve = '{KEY}'");
    let name = "n".repeat(USER_NAME_BYTES_MAX);
    let prefixes: String = (0..PREFIXES_MAX).map(|number| format!("'p{number}',")).collect();
    let longest = "p".repeat(PREFIX_BYTES_MAX);
    let users = parsed(&format!("[{name}]\n{curve}\nread = [{prefixes}]\nwrite = ['{longest}']"));
    let permissions = &users.named(&name).unwrap().permissions;
    assert_eq!(permissions.tables.granted(Access::Read).len(), PREFIXES_MAX);
    assert!(permissions.tables.granted(Access::Write).eq([longest.as_bytes()]));
    refused(&format!("[\"a\\u0007\"]\n{curve}"), 1, "no white space");
    assert!(!parsed(&format!("[a]\n{curve}\nadmin = false")).named("a").unwrap().permissions.admin);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    let filled = |bytes: u64| {
        let section = format!("[a]\n{curve}\n");
        std::fs::write(&file, section.clone() + &"#".repeat(usize::try_from(bytes).unwrap() - section.len())).unwrap();
        UserList::read(&file)
    };
    assert!(filled(USERS_FILE_BYTES_MAX).is_ok());
    assert!(filled(USERS_FILE_BYTES_MAX + 1).unwrap_err().contains("more than"));
}

#[test]
fn a_file_is_for_its_owner_and_its_group_alone() {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().unwrap();
    for (mode, expected) in [(0o600, false), (0o711, false), (0o640, false), (0o604, true)] {
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(is_read_by_others(file.path()), expected, "{mode:o}");
    }
}

#[test]
fn a_slip_is_a_letter_more_less_or_another() {
    let rows = [
        ("read", "read", 0),
        ("raed", "read", 2),
        ("", "own", 3),
        ("own", "", 3),
        ("sitting", "kitten", 3),
        ("red", "read", 1),
    ];
    for (one, other, expected) in rows {
        assert_eq!(slips(one, other), expected, "{one} {other}");
    }
}

#[test]
fn no_error_shows_a_hash() {
    let hash = HashedPassword::of("heron").unwrap();
    let (_, why) = UserList::parse(&format!("[a]\npassword = '{}'\nnope = 1", hash.text())).unwrap_err();
    assert!(!why.contains(hash.text()));
    let (_, why) = UserList::parse(&format!("[a]\npassword = '{}x'", hash.text().replace("$m", "$q"))).unwrap_err();
    assert!(!why.contains("argon2id$"), "{why}");
}

#[test]
fn more_users_than_the_bound_are_refused() {
    let hash = HashedPassword::of("p").unwrap();
    let file =
        |count: usize| -> String { (0..count).map(|n| format!("[u{n}]\npassword='{}'\n", hash.text())).collect() };
    assert_eq!(parsed(&file(USERS_MAX)).sorted().len(), USERS_MAX);
    refused(&file(USERS_MAX + 1), 2 * USERS_MAX + 1, "more than 1024 users");
}

#[test]
fn users_that_stay_the_same_are_shared_with_the_list_before() {
    let key = |key: &str| format!("curve = '{key}'\n");
    let of_a = format!("[a]\n{}certificate = '{CERTIFICATE}'\n", key(KEY));
    let first = parsed(&format!("{of_a}[b]\n{}", key(OTHER_KEY)));
    let mut second = parsed(&format!("{of_a}[b]\nadmin = true\n{}", key(OTHER_KEY)));
    let certificate = Fingerprint::parse(CERTIFICATE).unwrap();
    second.keep_unchanged(&first);
    assert!(Arc::ptr_eq(first.named("a").unwrap(), second.named("a").unwrap()));
    assert!(Arc::ptr_eq(first.named("a").unwrap(), second.with_key(&KEY.parse().unwrap()).unwrap()));
    assert!(Arc::ptr_eq(first.named("a").unwrap(), second.with_certificate(&certificate).unwrap()));
    assert!(!Arc::ptr_eq(first.named("b").unwrap(), second.named("b").unwrap()));
}

#[test]
fn a_file_that_is_missing_or_too_long_is_refused_by_name() {
    assert!(UserList::read(Path::new("/nowhere/users")).unwrap_err().starts_with("/nowhere/users: it cannot be read"));
    assert!(UserList::read(Path::new("/dev/zero")).unwrap_err().contains("more than"));
}
