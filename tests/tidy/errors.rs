//! Errors say their cause once. Programs print an error and then its sources, one after the other; so an error either
//! has its cause in its own text, or has it as its source.

use crate::Violation;
use crate::tree::Text;

/// Errors of `thiserror` that print their source themselves.
pub(crate) fn said_twice(texts: &[Text]) -> Vec<Violation> {
    let files = texts.iter().filter(|text| text.path.ends_with(".rs"));
    files.flat_map(in_file).collect()
}

fn in_file(file: &Text) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut prints = None;
    let mut lines = file.text.lines().zip(1..).peekable();
    while let Some((line, number)) = lines.next() {
        let line = line.trim_end();
        if line.trim_start().starts_with("#[error(") {
            let mut said = line.to_owned();
            while !said.trim_end().ends_with(")]")
                && let Some((more, _)) = lines.next()
            {
                said.push_str(more);
            }
            let names = ["{0", "{source", "{error"];
            prints = names
                .iter()
                .any(|name| said.contains(name))
                .then_some(number);
        } else if line == "}" {
            prints = None;
        } else if let Some(at) = prints
            && !line.trim_start().starts_with("//")
            && ["#[from]", "#[source]", " source: "]
                .iter()
                .any(|mark| line.contains(mark))
        {
            violations.push(Violation {
                path: file.path.clone(),
                line: at,
                what: "the error prints its source, and has it as its source too".into(),
            });
            prints = None;
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let (path, text) = ("hca-sim/src/error.rs".into(), text.into());
        let found = said_twice(&[Text { path, text }]);
        found.iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn a_cause_that_is_said_twice_is_seen() {
        let bad = "enum E {\n    #[error(\"no file: {0}\")]\n    File(#[from] io::Error),\n    #[error(\n        \
                   \"no socket {a}: {source}\"\n    )]\n    Socket { a: u8, source: io::Error },\n}\n\
                   #[error(\"{error}\")]\nstruct S {\n    #[source]\n    error: io::Error,\n}\n";
        assert_eq!(lines(bad), [2, 4, 9]);
    }

    #[test]
    fn a_cause_that_is_said_once_is_fine() {
        let fine = "enum E {\n    #[error(transparent)]\n    File(#[from] io::Error),\n    #[error(\"no socket\")]\n    \
                    Socket(#[source] io::Error),\n    #[error(\"wrong number {0}\")]\n    Number(u32),\n}\n\
                    struct S {\n    source: u32,\n}\n";
        assert_eq!(lines(fine), [0; 0]);
    }
}
