//! The flags of `spindle serve` for Redis clients.

use super::endpoint::{OFF, endpoint};
use crate::cli::CommandError;
use crate::server::RespSettings;

/// Where Redis clients look for a server.
const RESP_PORT: &str = "6379";

/// The flags of Redis clients, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct RespFlags {
    /// Serve the tables to Redis clients, at port 6379 of this host if none is given; may be given several times
    #[arg(long, value_name = "ADDR|PORT|unix:PATH|off", num_args = 0..=1, default_missing_value = RESP_PORT, value_parser = resp_endpoint)]
    resp: Vec<String>,

    /// Threads that serve Redis clients, unless --frontend native does; as many as --workers if not given
    #[arg(long, value_name = "THREADS", value_parser = clap::value_parser!(u16).range(1..))]
    resp_workers: Option<u16>,
}

impl RespFlags {
    /// Where Redis clients connect, and who serves them. `off` excludes any other endpoint.
    pub(crate) fn settings(&self) -> Result<RespSettings, CommandError> {
        let endpoints = match &*self.resp {
            [only] if only == OFF => Vec::new(),
            several if several.iter().any(|endpoint| endpoint == OFF) => {
                return Err(CommandError::Usage("--resp off and --resp ADDR exclude each other".to_owned()));
            }
            several => several.to_vec(),
        };
        if endpoints.is_empty() && self.resp_workers.is_some() {
            return Err(CommandError::Usage(
                "--resp-workers says how many threads serve Redis clients: give --resp too, or leave it out".to_owned(),
            ));
        }
        Ok(RespSettings { endpoints, workers: self.resp_workers.map_or(0, usize::from) })
    }
}

/// Parses an address, a port of this host, or a path as Redis writes it.
fn resp_endpoint(typed: &str) -> Result<String, String> {
    if typed == OFF {
        return Ok(typed.to_owned());
    }
    let written = match typed.strip_prefix("unix:") {
        Some(path) => format!("ipc://{}", path.trim_start_matches("//")),
        None if typed.parse::<u16>().is_ok() => format!("127.0.0.1:{typed}"),
        None => typed.to_owned(),
    };
    endpoint(&written).map_err(|_| format!("HOST:PORT, a PORT of this host, unix:PATH, or {OFF}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(flatten)]
        flags: RespFlags,
    }

    fn settings(flags: &[&str]) -> Result<RespSettings, String> {
        let parsed = Arguments::try_parse_from([&["serve"], flags].concat()).map_err(|error| error.to_string())?;
        parsed.flags.settings().map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn redis_clients_are_served_where_a_flag_says_so() {
        let endpoints = |flags: &[&str]| settings(flags).unwrap().endpoints;
        assert!(endpoints(&[]).is_empty() && endpoints(&["--resp", "off"]).is_empty());
        assert_eq!(endpoints(&["--resp"]), ["tcp://127.0.0.1:6379"]);
        assert_eq!(endpoints(&["--resp", "7000"]), ["tcp://127.0.0.1:7000"]);
        assert_eq!(
            endpoints(&["--resp", "0.0.0.0:7000", "--resp", "[::1]:1"]),
            ["tcp://0.0.0.0:7000", "tcp://[::1]:1"]
        );
        assert_eq!(endpoints(&["--resp", "unix:/run/s", "--resp", "unix:///s"]), ["ipc:///run/s", "ipc:///s"]);
        assert_eq!(settings(&["--resp", "--resp-workers", "3"]).unwrap().workers, 3);
        for wrong in
            [&["--resp", "70000"][..], &["--resp", "a b"], &["--resp", "off", "--resp", "1"], &["--resp-workers", "2"]]
        {
            assert!(settings(wrong).is_err(), "{wrong:?}");
        }
    }
}
