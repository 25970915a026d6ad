//! The hidden units of one rank of a group.
use super::super::{Rbm, RbmConfig, RbmConnections};
use super::units::Units;
use crate::conv_rbm::ConvGrid;
use crate::patch_rbm::{Band, Cells, Lines, Seams};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::core::Draws;
use chandlery_ops::layers::units_;
use chandlery_ops::{Group, Philox};
use std::ops::Range;

/// Hidden units of a part begin at multiples of the first of these by which all of them divide.
const BLOCKS: [usize; 3] = [64, 16, 4];

/// Which of the hidden units this rank has, and which visible units these see.
#[derive(Clone)]
pub(in super::super) struct HiddenShare {
    pub group: Group,
    /// Of hidden units, or of maps.
    own: Range<usize>,
    of: usize,
    /// Of patches: visible units are then those of a band, too. None for all visible units.
    band: Option<Band>,
    /// What ranks exchange of a band, once the rows of a minibatch are known.
    seams: Option<Seams>,
}

impl HiddenShare {
    /// All of them.
    pub fn whole(rbm: &RbmConfig) -> Self {
        let of = Self::n_of(rbm);
        let own = 0..of;
        Self { group: Group::single(), own, of, band: None, seams: None }
    }

    /// Hidden units, or maps.
    fn n_of(rbm: &RbmConfig) -> usize {
        rbm.filter_grid().map_or(rbm.n_hidden, |grid| grid.n_filters)
    }

    /// Those of a rank, of `rbm` above `lower`; with `cells`, the lowest has its values in cells.
    ///
    /// # Errors
    /// When units do not divide so.
    pub fn of(group: &Group, lower: &[Rbm], rbm: &RbmConfig, cells: Option<Cells>) -> Result<Self> {
        let of = Self::n_of(rbm);
        if let Some(grid) = rbm.patch_grid() {
            let band = Band::of(group, lower, rbm, cells)?;
            let (patches, each) = (band.patches(), of / grid.n_patches());
            let own = patches.start * each..patches.end * each;
            return Ok(Self { group: group.clone(), own, of, band: Some(band), seams: None });
        }
        let Some(block) =
            BLOCKS.into_iter().find(|block| of.is_multiple_of(*block) && of / block >= group.world())
        else {
            let what = if rbm.filter_grid().is_some() { "filters" } else { "hidden units" };
            candle::bail!(
                "RbmTrainer: {what} must be a multiple of 4, and 4 for each of {} ranks, got {of}",
                group.world()
            )
        };
        let part = group.part(of / block);
        let own = block * part.start..block * part.end;
        Ok(Self { group: group.clone(), own, of, band: None, seams: None })
    }

    /// The same with memory for what ranks exchange of a minibatch of `batch` rows.
    pub fn for_rows(self, batch: usize, device: &Device) -> Result<Self> {
        let seams = self.band.as_ref().map(|band| band.seams(batch, device)).transpose()?;
        Ok(Self { seams, ..self })
    }

    /// The RBM of these hidden units.
    pub fn config(&self, rbm: &RbmConfig) -> RbmConfig {
        match (&self.band, rbm.filter_grid()) {
            (Some(band), _) => band.config(rbm),
            (None, Some(grid)) => {
                let grid = ConvGrid { n_filters: self.own.len(), ..grid };
                let connections = RbmConnections::Filters(grid);
                RbmConfig { n_hidden: grid.n_pooled(), connections, ..rbm.clone() }
            }
            (None, None) => RbmConfig { n_hidden: self.own.len(), ..rbm.clone() },
        }
    }

    /// The RBMs below, as far as these units see them.
    pub fn below(&self, whole: Vec<Rbm>) -> Result<Vec<Rbm>> {
        self.band.as_ref().map_or(Ok(whole.clone()), |band| band.below(&whole))
    }

    /// The cells of the lowest RBM, of `whole` ones.
    pub fn cells(&self, whole: Option<Cells>) -> Option<Cells> {
        self.band.as_ref().map_or(whole, Band::cells)
    }

    /// Raw rows as far as these units see them.
    pub fn rows(&self, raw: &Tensor) -> Result<Tensor> {
        self.band.as_ref().map_or_else(|| Ok(raw.clone()), |band| band.raw().own_rows(raw))
    }

    /// Visible units of a row, of all ranks: `own` is how many this one has.
    pub fn n_visible(&self, own: usize) -> usize {
        self.band.as_ref().map_or(own, |band| band.visible().n_of_all())
    }

    /// The visible units of this rank of a tensor `[.., n_visible]` of all.
    pub fn visible(&self, all: &Tensor) -> Result<Tensor> {
        self.band.as_ref().map_or_else(|| Ok(all.clone()), |band| band.visible().own(all))
    }

    /// The sum of the numbers of visible units, `[.., n_visible]` of those of this rank, over all of
    /// them. Waits for the device; all ranks make the call.
    pub fn sum_of_visible(&self, own: &Tensor) -> Result<f64> {
        let sum = |t: &Tensor| t.to_dtype(DType::F64)?.sum_all();
        match &self.band {
            None => sum(own)?.to_scalar(),
            Some(band) => {
                let sum = sum(&band.counted(own)?)?.reshape(1)?;
                self.group.all_reduce_(&sum)?;
                sum.get(0)?.to_scalar()
            }
        }
    }

    /// Where these units take their draws.
    pub fn draws<'a>(&self, philox: Philox, counter: &'a Tensor) -> Draws<'a> {
        if self.group.is_single() {
            return Draws::Counter { philox, counter };
        }
        Draws::Columns { philox, counter, first: self.own.start, of: self.of }
    }

    /// Hidden units of this rank, or maps.
    pub fn n_own(&self) -> usize {
        self.own.len()
    }

    /// What is `n` for the units or maps of this rank, for those of all.
    pub fn of_all(&self, n: usize) -> usize {
        n * self.of / self.own.len()
    }

    /// Where visible units take their draws.
    pub fn visible_draws<'a>(&self, philox: Philox, counter: &'a Tensor) -> Draws<'a> {
        let of_all = Draws::Counter { philox, counter };
        self.band.as_ref().map_or(of_all, |band| band.visible().draws(philox, counter))
    }

    /// Some lines of the values of rows that are drawn; none for all.
    pub fn input(&self) -> Option<Lines> {
        self.band.as_ref().map(Band::input)
    }

    /// Sums pre-activations of visible units over the ranks that have them.
    pub fn sum_(&self, pre: &Tensor) -> Result<()> {
        match &self.seams {
            Some(seams) => seams.sum_(&self.group, pre),
            None => self.group.all_reduce_(pre),
        }
    }

    /// Whether [`visible_units`](Self::visible_units) makes tensors.
    pub fn makes_tensors(&self) -> bool {
        self.band.as_ref().is_some_and(|band| band.visible().planes() > 1)
    }

    /// Units of complete pre-activations.
    pub fn visible_units(&self, to: &Units<'_>, stdev: Option<&Tensor>) -> Result<()> {
        let &Units { planes, pre, bias, unit, out, draws } = to;
        let lines = self.band.as_ref().map(Band::visible).filter(|lines| lines.planes() > 1);
        let Some(lines) = lines else { return units_(planes, pre, bias, unit, out, draws, stdev) };
        // Draws lie apart from one plane of the grid to the next, as those of rows do.
        let pre = lines.by_plane(&pre.broadcast_add(bias)?)?;
        let width = pre.dim(1)?;
        let planes = planes.reshape((planes.dim(0)?, (), width))?;
        units_(&planes, &pre, &Tensor::zeros(width, DType::F32, pre.device())?, unit, out, draws, None)
    }

    /// The part of this rank of a tensor of the state, of the name that the trainer gives it.
    pub fn part(&self, name: &str, whole: &Tensor) -> Result<Tensor> {
        match self.place(name) {
            _ if name == "chain" => {
                let own = whole.reshape(((), self.of))?.narrow(1, self.own.start, self.own.len())?;
                own.contiguous()?.reshape((whole.dim(0)?, ()))
            }
            Some((dim, Range { start, end })) => whole.narrow(dim, start, end - start)?.contiguous(),
            None if name == "visible_state" => self.visible(whole),
            None => Ok(whole.clone()),
        }
    }

    /// The tensor of all units of the part that each rank has; all ranks must ask for it.
    pub fn gathered(&self, name: &str, part: &Tensor) -> Result<Tensor> {
        if name == "chain" {
            // Units of maps: maps of one place next to each other.
            let whole = self.all_of(&part.reshape(((), self.own.len()))?, 1, self.own.start)?;
            return whole.reshape((part.dim(0)?, ()));
        }
        let Some((dim, own)) = self.place(name) else {
            return match &self.band {
                Some(band) if name == "visible_state" => band.gathered(&self.group, part),
                _ => Ok(part.clone()),
            };
        };
        self.all_of(part, dim, own.start)
    }

    /// The parts of all ranks along a dimension; this one's begins at `start`.
    fn all_of(&self, part: &Tensor, dim: usize, start: usize) -> Result<Tensor> {
        let mut shape = part.dims().to_vec();
        shape[dim] = self.of_all(shape[dim]);
        // Parts may differ in size; each entry is a sum of one number and zeros, and so exact.
        let whole = Tensor::zeros(shape, part.dtype(), part.device())?;
        whole.slice_set(&part.contiguous()?, dim, start)?;
        self.group.all_reduce_(&whole)?;
        Ok(whole)
    }

    /// Which dimension of a tensor of the state is that of hidden units or of patches, and where those
    /// of this rank are.
    fn place(&self, name: &str) -> Option<(usize, Range<usize>)> {
        let of_weights = self.band.as_ref().map_or(self.own.clone(), Band::patches);
        match name {
            "params" => Some((1, of_weights)),
            "velocity" => Some((0, of_weights)),
            "hidden_state" => Some((1, self.own.clone())),
            _ => None,
        }
    }
}
