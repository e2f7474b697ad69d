//! `verbs completions` and `verbs man`: what a shell and a reader want to know of the command, made from its arguments.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;

pub(crate) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  verbs completions bash > ~/.local/share/bash-completion/completions/verbs
  verbs completions zsh > ~/.zfunc/_verbs                  with ~/.zfunc in fpath
  verbs completions fish > ~/.config/fish/completions/verbs.fish";

pub(crate) const MAN_EXAMPLES: &str = "\
Examples:
  verbs man | man -l -                                     the page of verbs itself
  verbs man perf | man -l -                                that of a command
  verbs man --dir ~/.local/share/man/man1                  all pages: verbs.1, verbs-perf.1, ...";

/// Completions of a shell, on stdout.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Manual pages.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The command, as srp or srp ls; without it, verbs itself
    command: Vec<String>,
    /// Write all pages into that folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

/// What went wrong. One sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShellError {
    #[error("there is no command `{0}`; verbs --help lists them")]
    NoCommand(String),
    #[error("cannot write {}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("cannot write the page to stdout: {0}")]
    Stdout(io::Error),
}

impl ShellError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NoCommand(_) => crate::exit::USAGE,
            Self::File { .. } | Self::Stdout(_) => crate::exit::FILES,
        }
    }
}

pub(crate) fn completions(args: &CompletionsArgs, out: &mut dyn Write) -> Result<(), ShellError> {
    // The generator does not say what went wrong with its output; a buffer takes all of it.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "verbs", &mut text);
    out.write_all(&text).map_err(ShellError::Stdout)
}

pub(crate) fn man(args: &ManArgs, out: &mut dyn Write) -> Result<(), ShellError> {
    let mut root = Cli::command();
    root.build();
    if let Some(folder) = &args.dir {
        return all_pages(&root, "verbs", folder);
    }
    let (mut command, mut name) = (&root, String::from("verbs"));
    for word in &args.command {
        command = command
            .find_subcommand(word)
            .ok_or_else(|| ShellError::NoCommand(args.command.join(" ")))?;
        name = format!("{name}-{word}");
    }
    let page = page(command, &name).map_err(ShellError::Stdout)?;
    out.write_all(&page).map_err(ShellError::Stdout)
}

fn all_pages(command: &Command, name: &str, folder: &Path) -> Result<(), ShellError> {
    let path = folder.join(format!("{name}.1"));
    let written = page(command, name).and_then(|page| std::fs::write(&path, page));
    written.map_err(|error| ShellError::File { path, error })?;
    for below in command
        .get_subcommands()
        .filter(|below| below.get_name() != "help")
    {
        all_pages(below, &format!("{name}-{}", below.get_name()), folder)?;
    }
    Ok(())
}

fn page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone().display_name(name)).render(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_knows_every_command() {
        for &shell in Shell::value_variants() {
            let mut text = Vec::new();
            completions(&CompletionsArgs { shell }, &mut text).expect("memory takes all");
            let text = String::from_utf8(text).expect("text");
            for command in Cli::command().get_subcommands() {
                assert!(
                    text.contains(command.get_name()),
                    "{shell}: {}",
                    command.get_name()
                );
            }
        }
    }

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().expect("a folder");
        let args = ManArgs {
            command: Vec::new(),
            dir: Some(folder.path().into()),
        };
        man(&args, &mut Vec::new()).expect("written");
        for page in ["verbs.1", "verbs-perf.1", "verbs-srp-ls.1"] {
            let text = std::fs::read_to_string(folder.path().join(page)).expect(page);
            assert!(text.contains(".SH NAME"), "{page}: {text}");
        }
        let missing = ManArgs {
            command: vec!["nothing".into()],
            dir: None,
        };
        let refused = man(&missing, &mut Vec::new());
        assert!(matches!(refused, Err(ShellError::NoCommand(_))));
    }
}
