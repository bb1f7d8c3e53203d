//! The connection of commands about tables, which share it if they follow each other in a script.

use std::io::{self, Read};

use super::refusal::failure;
use crate::cli::CommandError;
use crate::cli::flags::endpoint::Connect;
use crate::clients::rust::tables::Client;

/// What commands have in common that follow each other.
#[derive(Default)]
pub(crate) struct Session {
    /// The lines of a script are not the input of its commands, and each value ends with a line feed.
    is_script: bool,
    /// The connection, and the flags that it was made with.
    open: Option<(Connect, Client)>,
}

impl Session {
    /// The session of a script.
    pub(crate) fn of_script() -> Self {
        Self { is_script: true, open: None }
    }

    /// Whether the commands are lines of a script.
    pub(crate) fn is_script(&self) -> bool {
        self.is_script
    }

    /// Whether the connection is to this server.
    pub(crate) fn is_with(&self, server: &Connect) -> bool {
        self.open.as_ref().is_some_and(|(open, _)| open == server)
    }

    /// The connection, if there is one.
    pub(crate) fn opened(&mut self) -> Option<&mut Client> {
        self.open.as_mut().map(|(_, client)| client)
    }

    /// The connection to this server. It connects unless the command before had the same server.
    ///
    /// # Errors
    /// [`CommandError`] if it cannot connect or log in.
    pub(crate) fn client(&mut self, server: &Connect) -> Result<&mut Client, CommandError> {
        let open = self.open.take().filter(|(open, _)| open == server);
        let open = open.map_or_else(|| Ok::<_, CommandError>((server.clone(), connect(server)?)), Ok)?;
        Ok(&mut self.open.insert(open).1)
    }

    /// What an operand `-` reads.
    pub(crate) fn input(&self) -> Box<dyn Read> {
        if self.is_script { Box::new(io::empty()) } else { Box::new(io::stdin()) }
    }
}

/// Connects to a server, as a user if one is named.
///
/// # Errors
/// [`CommandError`] if it cannot connect or log in.
pub(crate) fn connect(server: &Connect) -> Result<Client, CommandError> {
    server.login.log_in()?;
    Client::connect_within(&server.connect, server.patience.timeouts()).map_err(failure)
}
