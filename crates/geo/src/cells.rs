//! What a search knows of a cell, whichever index it is of.

/// Cells in which a search looks for the nearest.
///
/// Invariant: what lies in a cell lies in one of its children, and no nearer and no farther than the cell.
pub trait Cells {
    type Cell: Copy;

    /// The largest cells, which hold everything.
    fn roots(&self) -> Vec<Self::Cell>;

    /// Empty for the smallest cells.
    fn children(&self, cell: Self::Cell) -> Vec<Self::Cell>;

    /// The first and the last number of the cell's index keys.
    fn range(&self, cell: Self::Cell) -> (i64, i64);

    /// The number of a key that stands for this very cell, and is no child's.
    fn own(&self, cell: Self::Cell) -> Option<i64>;

    /// The cell of a key.
    fn of_key(&self, key: i64) -> Option<Self::Cell>;

    /// The least and the greatest distance of its content.
    fn distances(&self, cell: Self::Cell) -> (f64, f64);
}
