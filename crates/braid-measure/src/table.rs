use std::fmt::{self, Display, Formatter};

use comfy_table::{CellAlignment, Table as Grid, presets};

/// Alignment of the columns behind the first, which is aligned to the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

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
            column.set_padding(if at == 0 { (0, 0) } else { (2, 0) });
            if at > 0 && alignment == Alignment::Right {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }

    /// Appends a row; missing cells are empty.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.0.add_row(cells.into_iter().map(Into::into).collect::<Vec<String>>());
    }
}

impl Display for Table {
    /// The rows, each with its line end and without trailing spaces.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.lines().try_for_each(|line| writeln!(f, "{}", line.trim_end()))
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
}
