//! A table of plain text, its columns aligned.

use std::fmt::{self, Display, Formatter};

use super::text;

/// The longest text of a first column.
const LONGEST_NAME: usize = 36;
const GAP: usize = 2;

/// The first column is aligned to the left, the others to the right.
pub(super) struct Grid {
    titles: Vec<String>,
    rows: Vec<Row>,
}

enum Row {
    Heading(String),
    Cells(Vec<String>),
}

impl Grid {
    pub(super) fn new<T: Into<String>>(titles: impl IntoIterator<Item = T>) -> Self {
        Self { titles: titles.into_iter().map(|title| text::line(&title.into())).collect(), rows: Vec::new() }
    }

    /// A line over the rows that follow.
    pub(super) fn heading(&mut self, words: impl AsRef<str>) {
        self.rows.push(Row::Heading(text::line(words.as_ref())));
    }

    /// A cell for each title.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().enumerate().map(|(at, cell)| match at {
            0 => text::shortened(&cell, LONGEST_NAME),
            _ => text::line(&cell),
        });
        self.rows.push(Row::Cells(cells.collect()));
    }

    /// The same table as several, each with the first column and at most `width` characters wide where that can be.
    pub(super) fn split(self, width: usize) -> Vec<Self> {
        let widths = self.widths();
        let first = widths.first().copied().unwrap_or(0);
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let mut used = usize::MAX;
        for (at, column) in widths.iter().enumerate().skip(1) {
            if used.saturating_add(GAP + column) > width {
                parts.push(vec![0]);
                used = first;
            }
            used += GAP + column;
            if let Some(part) = parts.last_mut() {
                part.push(at);
            }
        }
        if parts.len() < 2 {
            return vec![self];
        }
        let choose = |cells: &[String], part: &[usize]| -> Vec<String> {
            part.iter().filter_map(|at| cells.get(*at).cloned()).collect()
        };
        let part_of = |part: &Vec<usize>| Self {
            titles: choose(&self.titles, part),
            rows: self
                .rows
                .iter()
                .map(|row| match row {
                    Row::Heading(words) => Row::Heading(words.clone()),
                    Row::Cells(cells) => Row::Cells(choose(cells, part)),
                })
                .collect(),
        };
        parts.iter().map(part_of).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.titles.iter().map(|title| title.chars().count()).collect();
        for row in &self.rows {
            if let Row::Cells(cells) = row {
                for (width, cell) in widths.iter_mut().zip(cells) {
                    *width = (*width).max(cell.chars().count());
                }
            }
        }
        widths
    }
}

impl Display for Grid {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        write_cells(f, &self.titles, &widths)?;
        for row in &self.rows {
            match row {
                Row::Heading(words) => writeln!(f, "{words}")?,
                Row::Cells(cells) => write_cells(f, cells, &widths)?,
            }
        }
        Ok(())
    }
}

fn write_cells(f: &mut Formatter<'_>, cells: &[String], widths: &[usize]) -> fmt::Result {
    let mut line = String::new();
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        match at {
            0 => line.push_str(&format!("{cell:<width$}")),
            _ => line.push_str(&format!("{:GAP$}{cell:>width$}", "")),
        }
    }
    writeln!(f, "{}", line.trim_end())
}
