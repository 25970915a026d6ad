//! The order in which the descent takes the points: near points follow each other, so that caches
//! hold what an iteration gathers.
use super::Affinities;
use candle::{Result, Tensor};
use chandlery_ops::arrays::elementwise::contiguous;
use chandlery_ops::arrays::{gather_rows_by, scale_into_, sort_by_key};
use chandlery_ops::tsne::{LayoutState, affinities_in_order, affinities_in_order_, curve_order};

/// Points from which on a sort saves more than it costs.
const LEAST: usize = 20_000;
/// Iterations of a phase before which points are sorted: the layout changes most at the start of a
/// phase.
const EARLY: [usize; 3] = [0, 50, 100];
const LATE: [usize; 3] = [0, 100, 250];

/// Whether `n` points are sorted before this iteration; the second phase begins at `late`.
pub(super) fn is_due(n: usize, iteration: usize, late: usize) -> bool {
    let in_phase = match iteration.checked_sub(late) {
        Some(iteration) => LATE.contains(&iteration),
        None => EARLY.contains(&iteration),
    };
    n >= LEAST && in_phase
}

/// Points in an order of their own.
pub(super) struct Ordered {
    /// The affinities between the points in this order.
    pub graph: Affinities,
    places: Option<Places>,
}

/// Which point each is, and where each point is.
struct Places {
    order: Tensor,
    places: Tensor,
}

impl Ordered {
    /// The order of the rows.
    pub(super) fn as_given(affinities: &Affinities) -> Self {
        Self { graph: affinities.clone(), places: None }
    }

    pub(super) fn is_sorted(&self) -> bool {
        self.places.is_some()
    }

    /// The point that each is, u32 `[n]`; none where they are as they were given.
    pub(super) fn order(&self) -> Option<&Tensor> {
        self.places.as_ref().map(|places| &places.order)
    }

    /// Sorts the points of a state in this order by their places in the layout.
    pub(super) fn sort(&mut self, affinities: &Affinities, state: &LayoutState) -> Result<()> {
        let moved = curve_order(&state.layout)?;
        let order = match self.order() {
            Some(order) => gather_rows_by(order, &moved)?,
            None => moved.clone(),
        };
        self.set(affinities, order)?;
        reorder(state, &moved)
    }

    /// Takes other affinities of the points, in the order that they have.
    pub(super) fn follow(&mut self, affinities: &Affinities) -> Result<()> {
        self.graph = match self.order() {
            Some(order) => affinities_in_order(affinities, order)?,
            None => affinities.clone(),
        };
        Ok(())
    }

    /// Takes the points of a state, which are as they were given, in this order.
    pub(super) fn take(
        &mut self,
        affinities: &Affinities,
        state: &LayoutState,
        order: &Tensor,
    ) -> Result<()> {
        self.set(affinities, order.clone())?;
        reorder(state, order)
    }

    fn set(&mut self, affinities: &Affinities, order: Tensor) -> Result<()> {
        match self.places {
            // The memory stays, and with it what was recorded of it.
            Some(_) => affinities_in_order_(&self.graph, affinities, &order)?,
            None => self.graph = affinities_in_order(affinities, &order)?,
        }
        let places = sort_by_key(&order, order.elem_count())?.order;
        self.places = Some(Places { order, places });
        Ok(())
    }

    /// A copy of rows of this order in that of the points as they were given.
    pub(super) fn as_given_of(&self, rows: &Tensor) -> Result<Tensor> {
        match &self.places {
            Some(places) => gather_rows_by(&contiguous(rows)?, &places.places),
            None => rows.copy(),
        }
    }
}

/// Row `i` of all that a step goes on from becomes row `order[i]`.
fn reorder(state: &LayoutState, order: &Tensor) -> Result<()> {
    for t in [&state.layout, &state.velocity, &state.gains].into_iter().chain(&state.weights) {
        scale_into_(t, &gather_rows_by(t, order)?, 1.)?;
    }
    Ok(())
}
