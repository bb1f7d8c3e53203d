//! `spindle slow`: the last requests that took longer than the server's `--slow`.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::cli::flags::endpoint::TimeoutFlag;
use crate::cli::flags::login::LoginFlags;
use crate::cli::flags::operand::shown;
use crate::cli::flags::tls::{TcpAddress, TlsFlags};
use crate::cli::numbers::{bytes, clock_time, count, micros};
use crate::cli::show::{Format, columns};
use crate::cli::{ADMIN_ADDRESS, CommandError};
use crate::clients::rust::operator::admin::{AdminClient, Error};

/// The server that shows itself to an operator.
#[derive(Debug, Args)]
pub(crate) struct AdminServer {
    /// Address at which the server shows itself to an operator: HOST:PORT, PORT or https://HOST:PORT
    #[arg(long, value_name = "ADDR|PORT", env = "SPINDLE_CONNECT_ADMIN", default_value = ADMIN_ADDRESS, value_parser = TcpAddress::parse)]
    admin: TcpAddress,
    #[command(flatten)]
    patience: TimeoutFlag,
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    login: LoginFlags,
}

impl AdminServer {
    /// The time to wait for each answer, if one was asked for.
    pub(crate) fn asked_timeout(&self) -> Option<Duration> {
        self.patience.asked()
    }

    /// A client of it.
    ///
    /// # Errors
    /// [`CommandError`] if a user is named, and there is no password.
    pub(crate) fn client(&self) -> Result<AdminClient, CommandError> {
        let timeouts = self.patience.timeouts();
        let client = AdminClient::new(&self.admin.address, timeouts.connect, timeouts.answer);
        let client = match self.tls.authorities(&self.admin)? {
            Some(authorities) => client.encrypted(&authorities),
            None => client,
        };
        Ok(match self.login.name_and_password()? {
            Some((name, password)) => client.with_user(&name, &password),
            None => client,
        })
    }
}

/// A document of the server.
///
/// # Errors
/// [`CommandError`] if the server does not answer, or not with JSON.
pub(crate) fn document(client: &AdminClient, path: &str) -> Result<Value, CommandError> {
    answered(client, client.get(path))
}

/// The document in an answer of the server.
///
/// # Errors
/// [`CommandError`] if there is none.
pub(crate) fn answered(client: &AdminClient, answer: Result<String, Error>) -> Result<Value, CommandError> {
    let text = answer.map_err(|error| match error {
        Error::Refused { address, status, .. } if status == "401" => CommandError::Denied(format!(
            "{address} refuses this client: its name or password is wrong, or it has none: name a user with --user, and \
             its password in SPINDLE_PASSWORD"
        )),
        Error::Refused { address, status, reason } => {
            let json: Option<Value> = serde_json::from_str(&reason).ok();
            let sentence = json.as_ref().and_then(|json| json.get("error")?.as_str()).unwrap_or(&reason);
            let what = format!("{address} answers {status}: {sentence}");
            match &*status {
                "400" => CommandError::Usage(what),
                "403" => CommandError::Denied(what),
                _ => CommandError::Failed(what),
            }
        }
        error => CommandError::Failed(error.to_string()),
    })?;
    serde_json::from_str(&text)
        .map_err(|error| CommandError::Failed(format!("{} does not answer with JSON: {error}", client.address())))
}

#[derive(Debug, Args)]
pub(crate) struct SlowArguments {
    #[command(flatten)]
    server: AdminServer,
    /// Print JSON, one line for each answer
    #[arg(long)]
    json: bool,
}

/// Prints the slow log, the latest request first.
///
/// # Errors
/// [`CommandError`] if the server does not answer, or the answer cannot be printed.
pub(crate) fn run(arguments: &SlowArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let document = document(&arguments.server.client()?, "/slow")?;
    Format::of(arguments.json).print(out, &text(&document), &document)
}

/// The titles of the columns, and whether each is text, which stands at the left.
const COLUMNS: [(&str, bool); 11] = [
    ("time", true),
    ("took", false),
    ("queue", false),
    ("execution", false),
    ("write", false),
    ("protocol", true),
    ("verb", true),
    ("table", true),
    ("request", false),
    ("reply", false),
    ("client", true),
];

/// The requests in columns, under a line that counts them.
fn text(document: &Value) -> String {
    let seen = document.get("seen").and_then(Value::as_u64).unwrap_or(0);
    let bound = micros(document.get("threshold_micros"));
    let requests = document.get("requests").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if requests.is_empty() {
        return format!("no request took longer than {bound}\n");
    }
    let rows: Vec<_> = requests.iter().map(row).collect();
    let head = format!("{} took longer than {bound}, the latest first\n", count(seen));
    head + &columns(&COLUMNS, &rows)
}

fn row(request: &Value) -> Vec<String> {
    let of = |name: &str| request.get(name);
    let word = |name| shown(of(name).and_then(Value::as_str).unwrap_or_default().as_bytes());
    vec![
        clock_time(of("unix_millis").and_then(Value::as_u64).unwrap_or(0)),
        micros(of("micros")),
        micros(of("queue_micros")),
        micros(of("execution_micros")),
        micros(of("write_micros")),
        word("protocol"),
        word("verb"),
        word("table"),
        bytes(of("request_bytes")),
        bytes(of("reply_bytes")),
        word("client"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_slow_request_is_said_so() {
        let document = json!({ "threshold_micros": 10_000.0, "seen": 0, "requests": [] });
        assert_eq!(text(&document), "no request took longer than 10.0 ms\n");
    }

    #[test]
    fn requests_stand_in_columns() {
        let document = json!({ "threshold_micros": 100.0, "seen": 1, "requests": [{
            "unix_millis": 1_000, "micros": 1_500.0, "queue_micros": null, "execution_micros": 1_400.0,
            "write_micros": 100.0, "protocol": "kv", "verb": "GET", "table": "a b", "request_bytes": 10,
            "reply_bytes": 2_048, "client": "127.0.0.1:7",
        }] });
        let expected = "1 took longer than 100 µs, the latest first\n\
            time             took  queue  execution   write  protocol  verb  table  request    reply  client\n\
            00:00:01 UTC  1.50 ms      –    1.40 ms  100 µs  kv        GET   a b       10 B  2.0 KiB  127.0.0.1:7\n";
        assert_eq!(text(&document), expected);
    }
}
