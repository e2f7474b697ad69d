//! The terminal while it shows a screen that renews itself.

use std::io::{self, stdout};
use std::panic;
use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use crossterm::{Command, cursor, execute};

use super::put;

/// The terminal's other screen, without a cursor and without echo, as long as this lives; then the terminal is as it was.
pub(super) struct Screen(());

/// What the keyboard, or the terminal itself, says.
pub(super) enum Key {
    Quit,
    Resized,
    Other,
}

impl Screen {
    /// # Errors
    /// There is no keyboard, or the terminal cannot be written to.
    pub(super) fn enter() -> io::Result<Self> {
        let before = panic::take_hook();
        // What a panic says is for the screen that stays.
        panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
        enable_raw_mode()?;
        let screen = Self(());
        execute!(stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    /// Shows lines from the top, as far as there is room, and a last one about keys.
    pub(super) fn show(&self, lines: &[String], delay: Duration) -> io::Result<()> {
        let (columns, rows) = match size() {
            Ok((columns, rows)) if columns > 0 && rows > 0 => (columns.into(), rows.into()),
            _ => (80, 24),
        };
        put(&mut stdout(), &frame(lines, delay, columns, rows))
    }

    /// Waits for a key so long.
    pub(super) fn key(&self, patience: Duration) -> io::Result<Key> {
        if !poll(patience)? {
            return Ok(Key::Other);
        }
        Ok(match read()? {
            Event::Resize(..) => Key::Resized,
            Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
                _ => Key::Other,
            },
            _ => Key::Other,
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Harmless if it was done before. Nothing else can be done if the terminal is gone.
fn restore() {
    let _gone = execute!(stdout(), cursor::Show, LeaveAlternateScreen);
    let _gone = disable_raw_mode();
}

/// All that is written for one picture, in one piece, so that it does not flicker.
fn frame(lines: &[String], delay: Duration, columns: usize, rows: usize) -> String {
    let mut text = String::new();
    ansi(&mut text, cursor::MoveTo(0, 0));
    for each in lines.iter().take(rows.saturating_sub(1)) {
        text.extend(each.chars().take(columns));
        ansi(&mut text, Clear(ClearType::UntilNewLine));
        text.push_str("\r\n");
    }
    let keys = format!("every {} s; q quits", delay.as_secs_f64());
    text.extend(keys.chars().take(columns));
    ansi(&mut text, Clear(ClearType::FromCursorDown));
    text
}

fn ansi(text: &mut String, command: impl Command) {
    // Writing to a string does not fail.
    let _ = command.write_ansi(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a small terminal is not scrolled by what it has no room for.
    #[test]
    fn a_frame_fits_the_terminal() {
        let lines: Vec<String> = (0..9).map(|n| format!("line {n} äöü and more")).collect();
        let text = frame(&lines, Duration::from_secs(1), 8, 4);
        assert_eq!(text.matches("\r\n").count(), 3);
        assert!(text.contains("line 2 ä") && !text.contains("line 3") && !text.contains("äö"));
        assert!(text.contains("every 1 ") && !text.contains("quits"));
        assert!(!frame(&lines, Duration::from_secs(1), 80, 1).contains("line"));
    }
}
