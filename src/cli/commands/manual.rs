//! `spindle completions` and `spindle man`: the declarations of the commands, for shells and for man(1).

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::{Shell, generate};
use clap_mangen::{Man, generate_to};

use crate::cli::CommandError;

/// The name of the program, which the shell completes.
const PROGRAM: &str = "spindle";

#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// Shell that is to complete commands and flags
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// Words of the command to describe, such as `task lend` [default: the program]
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
    /// Write the pages of all commands into this directory
    #[arg(long, value_name = "DIR", conflicts_with = "words")]
    directory: Option<PathBuf>,
}

/// Prints the script for a shell.
///
/// # Errors
/// [`CommandError::Output`]
pub(crate) fn completions(
    arguments: &CompletionsArguments,
    mut declared: Command,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    // It panics if it cannot write.
    let mut script = Vec::new();
    generate(arguments.shell, &mut declared, PROGRAM, &mut script);
    Ok(out.write_all(&script)?)
}

/// Prints a page of the manual, in the language of man(1), or writes all pages into a directory.
///
/// # Errors
/// [`CommandError::Usage`] if there is no such command, [`CommandError::Failed`] if a page cannot be written,
/// [`CommandError::Output`].
pub(crate) fn man(arguments: &ManArguments, mut declared: Command, out: &mut impl Write) -> Result<(), CommandError> {
    if let Some(directory) = &arguments.directory {
        return generate_to(declared, directory)
            .map_err(|error| CommandError::Failed(format!("cannot write pages to {}: {error}", directory.display())));
    }
    declared.build();
    let described = arguments.words.iter().try_fold(&declared, |command, word| {
        let unknown = || CommandError::Usage(format!("there is no command '{word}' to describe; see --help"));
        command.find_subcommand(word).ok_or_else(unknown)
    })?;
    Man::new(described.clone()).render(out)?;
    Ok(())
}
