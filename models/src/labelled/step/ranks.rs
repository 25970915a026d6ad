//! What the ranks of a group learn together, each from its own rows of a minibatch.
//!
//! ```text
//! Vᵣ ← [r = 0] μ V + ε/B Gᵣ,   V ← Σᵣ Vᵣ         a matrix: the sum of products over the rows of rank r is Gᵣ
//! g ← Σᵣ gᵣ/B,   v ← μ v + ε g                    biases
//! ```
//!
//! Decay, and the step by the velocities, are those of one rank, made by all.
use super::super::LabelledDbn;
use super::{Buffers, Directed, H_DRAWN, Rates, SEEN};
use crate::share::Share;
use candle::{DType, Result, Tensor};
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::core::{advance_, set_scalars_};
use chandlery_ops::layers::{BiasStep, Factors, Phases, WeightStep, bias_step_, gemm_, weight_step_};
use chandlery_ops::{Group, Precision};

/// The hidden side of the RBM on top, whose negative plane has its sign.
const HIDDEN: BiasStep<'static> = BiasStep { phases: Phases::Sum, gather_error: false, ..SEEN };
/// A gradient that is the only row of a plane.
const SUMMED: BiasStep<'static> = BiasStep { phases: Phases::Positive, gather_error: false, ..SEEN };

/// A matrix, and how it learns.
struct Matrix<'a> {
    /// `[2, n_out, n_in]`
    params: &'a Tensor,
    /// `[_, μ, ε]`
    rates: &'a Tensor,
    /// `a`, `b` and the factors of the products `aᵀ b` that make its velocity.
    products: Vec<(Tensor, Tensor, &'a Tensor)>,
}

/// Units with biases, and how these learn.
struct Side<'a> {
    /// `[4, n]`
    state: &'a Tensor,
    /// `[2, rows, n]`
    planes: Tensor,
    /// `[_, μ, ε]`
    rates: &'a Tensor,
    step: BiasStep<'static>,
}

/// Memory for what the ranks sum of each side.
#[derive(Clone)]
pub(super) struct Sums {
    all: Tensor,
    zeros: Tensor,
    /// Views of `all`, `[4, n]` for each side: row 1 is the gradient of the mean over all rows, row
    /// 2 the squared error.
    sides: Vec<Tensor>,
    /// `[_, 0, rows/B]`: the part of this rank's mean in that of all rows.
    part: Tensor,
    /// `[1, 1]`
    one: Tensor,
}

impl Sums {
    /// For buffers of a share; none where a rank is alone.
    pub(super) fn of(buffers: &Buffers) -> Result<Option<Self>> {
        let Buffers { share, counter, .. } = buffers;
        if share.group().is_single() {
            return Ok(None);
        }
        let device = counter.device();
        let sizes: Vec<usize> =
            buffers.sides()?.iter().map(|side| side.state.dim(1)).collect::<Result<_>>()?;
        let all = Tensor::zeros(4 * sizes.iter().sum::<usize>(), DType::F32, device)?;
        let mut at = 0;
        let mut take = |n: usize| {
            let side = all.narrow(0, at, 4 * n)?.reshape((4, n));
            at += 4 * n;
            side
        };
        let sides = sizes.into_iter().map(&mut take).collect::<Result<_>>()?;
        let part = Tensor::zeros(3, DType::F32, device)?;
        set_scalars_(&part, &[0., 0., share.rows().len() as f32 / share.of() as f32])?;
        let one = Tensor::ones((1, 1), DType::F32, device)?;
        Ok(Some(Self { zeros: all.zeros_like()?, all, sides, part, one }))
    }
}

impl Buffers {
    /// Buffers for this rank's share of minibatches of as many rows, on the same parameters, which
    /// all ranks have from the first: with its chains of those of one rank.
    pub(in super::super) fn in_group(&self, dbn: &LabelledDbn, group: &Group) -> Result<Self> {
        let buffers = self.with(dbn, Share::new(group, self.share.of()))?;
        self.lend_chains(&buffers)?;
        Ok(buffers)
    }

    /// This rank's Gibbs chains, `[rows, n_hidden]`.
    pub(in super::super) fn chains(&self) -> Result<Tensor> {
        self.top.hidden.get(H_DRAWN)
    }

    /// The same of all ranks, which make the call together.
    pub(in super::super) fn chains_of_all(&self) -> Result<Tensor> {
        self.share.gathered(&self.chains()?)
    }

    /// Gives chains, the first of all ranks, to buffers of as many rows or fewer.
    pub(in super::super) fn lend_chains(&self, to: &Self) -> Result<()> {
        let all = self.chains_of_all()?;
        if to.share.rows().is_empty() {
            return Ok(());
        }
        to.chains()?.slice_set(&to.share.own(&all)?, 0, 0)
    }

    /// Takes them back after a step.
    pub(in super::super) fn take_chains(&self, from: &Self) -> Result<()> {
        let all = from.chains_of_all()?;
        let own = self.share.rows();
        match own.end.min(from.share.of()).checked_sub(own.start) {
            None | Some(0) => Ok(()),
            Some(n) => self.chains()?.slice_set(&all.narrow(0, own.start, n)?, 0, 0),
        }
    }

    /// Makes the step of all ranks, and moves the counter on by `advance`.
    pub(super) fn learn_together(&self, sums: &Sums, advance: i64) -> Result<()> {
        let (matrices, sides) = (self.matrices()?, self.sides()?);
        let has_rows = !self.share.rows().is_empty();
        let mut over_ranks = self.share.group().beside();
        for Matrix { params, products, .. } in &matrices {
            let velocity = params.get(1)?;
            if !has_rows {
                scale_into_(&velocity, &velocity.zeros_like()?, 1.)?;
            }
            for (a, b, factors) in products.iter().filter(|_| has_rows) {
                gemm_(&velocity, &a.t()?, b, Factors::Tensor(factors), self.config.precision)?;
            }
            over_ranks.all_reduce_(&velocity)?;
        }
        scale_into_(&sums.all, &sums.zeros, 1.)?;
        for (side, sum) in sides.iter().zip(&sums.sides).filter(|_| has_rows) {
            bias_step_(sum, &side.planes, &sums.part, side.step)?;
        }
        over_ranks.all_reduce_(&sums.all)?;
        over_ranks.join()?;
        for Matrix { params, rates, .. } in &matrices {
            weight_step_(params, rates, WeightStep { l1: 0., l2: self.config.l2 as f32 })?;
        }
        for (Side { state, rates, step, .. }, sum) in sides.iter().zip(&sums.sides) {
            // Row 1 is the positive plane.
            bias_step_(state, &sum.narrow(0, 0, 2)?.unsqueeze(1)?, rates, SUMMED)?;
            if step.gather_error {
                let (error, add) = (sum.narrow(0, 2, 1)?, Factors::Host { alpha: 1., beta: 1. });
                gemm_(&state.narrow(0, 2, 1)?, &sums.one, &error, add, Precision::F32)?;
            }
        }
        advance_(&self.counter, advance)
    }

    fn matrices(&self) -> Result<Vec<Matrix<'_>>> {
        let Self { rates, top, wake, .. } = self;
        let mut all = Vec::new();
        for (layer, below, planes) in self.directed() {
            let products = Directed::products(below, planes, rates)?.to_vec();
            all.push(Matrix { params: &layer.params, rates: &rates.first, products });
        }
        let h = top.hidden.narrow(0, 0, 2)?.flatten(0, 1)?;
        let visible = wake[self.recognition.len()].flatten(0, 1)?;
        let products = vec![(h.clone(), top.labels.flatten(0, 1)?, &rates.label_product)];
        all.push(Matrix { params: &top.label_params, rates: &rates.label, products });
        let products = vec![(h, visible, &rates.product)];
        all.push(Matrix { params: &top.params, rates: &rates.first, products });
        Ok(all)
    }

    fn sides(&self) -> Result<Vec<Side<'_>>> {
        let Self { rates: Rates { first, label, .. }, top, wake, .. } = self;
        let side = |state, planes: &Tensor, rates, step| Side { state, planes: planes.clone(), rates, step };
        let hidden = top.hidden.narrow(0, 0, 2)?;
        let layers = self.directed().into_iter();
        let layers = layers.map(|(layer, _, planes)| side(&layer.state, planes, first, SEEN));
        let of_top = [
            side(&top.hidden_state, &hidden, first, HIDDEN),
            side(&top.visible_state, &wake[self.recognition.len()], first, SEEN),
            side(&top.label_state, &top.labels, label, SEEN),
        ];
        Ok(layers.chain(of_top).collect())
    }
}
