//! Output of the demo: a terminal that is drawn over again, or lines.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use super::page::{Page, event};
use super::say;
use crate::top::terminal::{Screen, is_quit_key};

/// Time between two pictures of a terminal.
const REDRAW: Duration = Duration::from_millis(500);

/// Time between two lines with counts.
const LINE: Duration = Duration::from_secs(5);

/// Events that a terminal shows.
const EVENTS: usize = 12;

/// Output of the demo.
pub(super) enum Output {
    Terminal { screen: Screen, events: VecDeque<String>, due: Instant },
    Lines { due: Instant },
}

impl Output {
    /// The terminal, if standard output is one.
    pub(super) fn open() -> Self {
        let due = Instant::now();
        if io::stdout().is_terminal()
            && let Ok(screen) = Screen::open()
        {
            return Self::Terminal { screen, events: VecDeque::new(), due };
        }
        Self::Lines { due }
    }

    /// Shows an event.
    pub(super) fn tell(&mut self, event: String) -> Result<(), String> {
        match self {
            Self::Terminal { events, due, .. } => {
                events.push_back(event);
                if events.len() > EVENTS {
                    events.pop_front();
                }
                *due = Instant::now();
                Ok(())
            }
            Self::Lines { .. } => say(&format!("{event}\n")),
        }
    }

    /// Shows the state, when it is time.
    pub(super) fn show(&mut self, page: &Page<'_>, url: &str, pause: Duration) -> Result<(), String> {
        match self {
            Self::Terminal { screen, events, due } if page.now >= *due => {
                *due = page.now + REDRAW;
                let lines = page.screen(url, pause, events.make_contiguous());
                screen.draw(&lines).map_err(|error| format!("cannot write to the terminal: {error}"))
            }
            Self::Lines { due } if page.now >= *due => {
                *due = page.now + LINE;
                say(&format!("{}\n", event(page.elapsed, &page.line())))
            }
            _ => Ok(()),
        }
    }

    /// Waits for a key that ends the demo, or one of its keys.
    pub(super) async fn key(&mut self) -> Key {
        let Self::Terminal { screen, .. } = self else { return std::future::pending().await };
        match screen.key().await {
            Some(key) if !is_quit_key(key) => Key::Other(key),
            // The end of the terminal is that of the demo.
            _ => Key::Quit,
        }
    }

    /// Gives the terminal back, and prints the last events and the summary.
    pub(super) fn close(self, summary: &str) -> Result<(), String> {
        let mut text = String::new();
        if let Self::Terminal { screen, events, .. } = self {
            drop(screen);
            events.iter().for_each(|event| text += &format!("{event}\n"));
        }
        say(&(text + summary))
    }
}

/// Key of a terminal.
pub(super) enum Key {
    Quit,
    Other(u8),
}
