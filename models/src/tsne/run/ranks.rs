//! Points divided over the ranks of a group.
//!
//! Each rank has all points, and moves its own: a stretch of the order in which the descent takes
//! them. What moved is gathered in each iteration.
use super::super::unique::Unique;
use super::TsneTrainer;
use candle::{DType, Error, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::tsne::{LayoutState, PART};
use std::ops::Range;

/// A rank's part of the points.
#[derive(Debug, Clone)]
pub(super) struct Ranks {
    pub group: Group,
    /// Its points.
    pub own: Range<usize>,
    n: usize,
    /// Points of the longest part, which all exchange.
    most: usize,
    /// Where all ranks' points come to, in their order, with room for parts that are not full: f32
    /// `[world · most, n_dims]`. None where a rank is alone.
    rooms: Option<Rooms>,
}

#[derive(Debug, Clone)]
struct Rooms {
    /// Of which this rank writes its part.
    own: Tensor,
    all: Tensor,
}

impl Ranks {
    /// One rank with all points.
    pub(super) fn single(n: usize) -> Self {
        Self { group: Group::single(), own: 0..n, n, most: n, rooms: None }
    }

    /// This rank's part of the points of a state, whose room becomes that of the part.
    pub(super) fn of(group: &Group, state: &mut LayoutState) -> Result<Self> {
        let (n, n_dims) = state.layout.dims2()?;
        if group.is_single() {
            return Ok(Self::single(n));
        }
        let most = n.div_ceil(group.world()).next_multiple_of(PART);
        let at = |rank: usize| (rank * most).min(n);
        let own = at(group.rank())..at(group.rank() + 1);
        let room = || Tensor::zeros((group.world() * most, n_dims), DType::F32, state.layout.device());
        let rooms = Rooms { own: room()?, all: room()? };
        state.room = rooms.own.narrow(0, 0, n)?;
        Ok(Self { group: group.clone(), own, n, most, rooms: Some(rooms) })
    }

    /// Where all points came to, in an iteration in which each rank moved its own; and the sums of
    /// the step over all.
    pub(super) fn moved(&self, state: &LayoutState) -> Result<Tensor> {
        let Some(rooms) = &self.rooms else { return Ok(state.room.clone()) };
        let part = rooms.own.narrow(0, self.group.rank() * self.most, self.most)?;
        self.group.all_gather_(&rooms.all, &part)?;
        self.group.all_reduce_(&state.sums()?)?;
        rooms.all.narrow(0, 0, self.n)
    }

    /// Gives each rank the velocities and gains of all points, of which it knew those of its own,
    /// and the places that rank 0 has: unlike devices round otherwise.
    pub(super) fn gather(&self, state: &LayoutState) -> Result<()> {
        if self.rooms.is_none() {
            return Ok(());
        }
        self.group.broadcast_(&state.layout, 0)?;
        for t in [&state.velocity, &state.gains] {
            let (part, all) = (self.zeros(t, self.most)?, self.zeros(t, self.group.world() * self.most)?);
            if !self.own.is_empty() {
                let own = t.narrow(0, self.own.start, self.own.len())?;
                part.slice_set(&own, 0, 0)?;
            }
            self.group.all_gather_(&all, &part)?;
            t.slice_set(&all.narrow(0, 0, self.n)?, 0, 0)?;
        }
        Ok(())
    }

    fn zeros(&self, like: &Tensor, rows: usize) -> Result<Tensor> {
        Tensor::zeros((rows, like.dim(1)?), like.dtype(), like.device())
    }

    /// Figures as rank 0 has them, by which all decide alike.
    pub(super) fn of_first<const N: usize>(&self, figures: [f64; N], like: &Tensor) -> Result<[f64; N]> {
        if self.group.is_single() {
            return Ok(figures);
        }
        let first = Tensor::new(&figures, like.device())?;
        self.group.broadcast_(&first, 0)?;
        let first = first.to_vec1::<f64>()?;
        first.try_into().map_err(|_| Error::msg("TsneTrainer: ranks must exchange as many figures"))
    }
}

impl TsneTrainer {
    /// This run as one of the ranks of a group, all of which begin with the state of rank 0.
    pub(super) fn divided(mut self, group: &Group) -> Result<Self> {
        if self.config.unique {
            Unique::check(group)?;
        }
        for t in [&self.state.layout, &self.state.velocity, &self.state.gains] {
            group.broadcast_(t, 0)?;
        }
        self.ranks = Ranks::of(group, &mut self.state)?;
        (self.repulsion, self.replay) = (None, None);
        Ok(self)
    }
}
