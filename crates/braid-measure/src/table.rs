//! Text tables for terminals, over comfy-table.

use std::fmt::{self, Display, Formatter};

use comfy_table::{CellAlignment, ColumnConstraint, Table as Grid, presets};

use crate::text;

/// Alignment of the columns behind the first, which is aligned to the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// Spaces between columns.
const GAP: u16 = 2;

/// Text table without borders; two spaces part the columns.
#[derive(Clone, Debug)]
pub struct Table(Grid);

impl Table {
    /// A table with this first row.
    pub fn new<T: Into<String>>(alignment: Alignment, titles: impl IntoIterator<Item = T>) -> Self {
        let mut grid = Grid::new();
        grid.load_preset(presets::NOTHING);
        let mut table = Self(grid);
        table.row(titles);
        for (at, column) in table.0.column_iter_mut().enumerate() {
            column.set_padding(if at == 0 { (0, 0) } else { (GAP, 0) });
            if at > 0 && alignment == Alignment::Right {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }

    /// Appends a row; missing cells are empty.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.0.add_row(cells.into_iter().map(|cell| text::line(&cell.into())).collect::<Vec<String>>());
    }

    /// Lines of the table, one for each row, without trailing spaces.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.0.lines().map(|line| line.trim_end().to_owned())
    }

    /// Tables of some columns each, if possible at most `width` characters wide; the first column is in all of them.
    #[must_use]
    pub fn parts(&self, width: u16) -> Vec<Self> {
        let mut widths = self.0.column_max_content_widths().into_iter();
        let first = widths.next().unwrap_or(0);
        let (mut part, mut used) = (0, first);
        let part_of = widths.map(|column| {
            used += GAP + column;
            if used > width && used > first + GAP + column {
                (part, used) = (part + 1, first + GAP + column);
            }
            part
        });
        let part_of: Vec<usize> = part_of.collect();
        let table = |part| {
            let mut table = self.clone();
            for (column, _) in table.0.column_iter_mut().skip(1).zip(&part_of).filter(|(_, of)| **of != part)
            {
                column.set_constraint(ColumnConstraint::Hidden);
            }
            table
        };
        (0..=part).map(table).collect()
    }
}

impl Display for Table {
    /// The rows, each with its line end and without trailing spaces.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.lines().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Alignment, Table};

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(Alignment::Left, ["", "long", "x"]);
        table.row(["abc", "b", "y"]);
        assert_eq!(table.to_string(), "     long  x\nabc  b     y\n");
    }

    #[test]
    fn numbers_stand_below_each_other() {
        let mut table = Table::new(Alignment::Right, ["name", "µs"]);
        table.row(["a", "1234"]);
        table.row(["without"]);
        assert_eq!(table.to_string(), "name       µs\na        1234\nwithout\n");
    }

    #[test]
    fn wide_tables_are_broken_between_columns() {
        let mut table = Table::new(Alignment::Right, ["", "one", "two", "three"]);
        table.row(["name", "1", "2", "3"]);
        let parts: Vec<String> = table.parts(14).iter().map(Table::to_string).collect();
        assert_eq!(parts, ["      one  two\nname    1    2\n", "      three\nname      3\n"]);
        let narrow: Vec<usize> = table.parts(1).iter().map(|part| part.lines().count()).collect();
        assert_eq!(narrow, [2, 2, 2], "a column that is wider has a part of its own");
    }
}
