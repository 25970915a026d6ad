//! Ops on arrays of any meaning: arithmetic, gathering, sorting, sums, scaling, conversion of types.
pub mod columns;
pub mod elementwise;
pub mod finite;
pub mod gather_rows;
pub mod halves;
pub mod history;
pub mod prefix_sum;
pub mod row_dots;
pub mod scale;
pub mod sort_by_key;
pub mod split_lines;
pub mod sums;
pub mod value_range;

pub use columns::columns_into_;
pub use finite::all_finite;
pub use gather_rows::{gather_rows, gather_rows_by, gather_rows_reference};
pub use halves::{halves_into_, joined_into_};
pub use history::{
    combine_rows_, combine_rows_reference, moved_along, moved_along_reference, put_difference_,
    put_difference_reference,
};
pub use prefix_sum::{PrefixSum, prefix_sum, prefix_sum_reference};
pub use row_dots::{row_dots, row_dots_reference};
pub use scale::{scale_into_, scale_into_reference, split_into_};
pub use sort_by_key::{SortedKeys, sort_by_key, sort_by_key_reference};
pub use split_lines::{split_columns_, split_rows_};
pub use sums::{column_sums_, column_sums_reference};
pub use value_range::extend_range_;
