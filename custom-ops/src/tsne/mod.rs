//! Ops of t-SNE: neighbours, affinities, repulsion and the steps of a layout.
pub mod affinities;
pub mod curve_order;
pub mod exact;
pub mod layout;
pub mod neighbours;
pub mod place;
pub mod ranks;
pub mod repulsion;

pub use affinities::{
    Affinities, affinities_in_order, affinities_in_order_, perplexity_search, perplexity_search_of_counts,
    perplexity_search_reference, symmetrize, symmetrize_reference,
};
pub use curve_order::{curve_order, curve_order_reference};
pub use exact::{ExactRows, exact_distance, exact_distances, row_angles};
pub use layout::{
    AttractionForm, LayoutFigures, LayoutState, LayoutStep, attraction, attraction_reference, layout_centre_,
    layout_divergence, layout_divergence_reference, layout_move_, layout_step_, layout_step_reference,
    one_direction,
};
pub use neighbours::{
    ApproximateNeighbours, Metric, Neighbours, Recall, RowsAboutMean, StreamedSearch, knn, knn_approximate,
    knn_approximate_in_group, knn_in_group, knn_of, knn_of_approximate, knn_of_reference, knn_reference,
    knn_streamed, row_distances, rows_about_mean,
};
pub use place::{PlaceState, PlaceSteps, place_points, place_points_, place_points_reference};
pub use ranks::{Bound, NearerCounts, count_nearer, count_nearer_reference};
pub use repulsion::{
    PART, Repulsion, RepulsionField, RepulsionMethod, grid_sides, repulsion_at, repulsion_reference,
};
