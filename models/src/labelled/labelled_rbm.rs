//! The top RBM, whose visible side is a layer of features and a group of label units.
use crate::check::{at_least_one, batch_of, values_of};
use crate::rbm::{HiddenUnit, Rbm, RbmConfig, VisibleUnit, softplus};
use candle::{D, DType, Result, Tensor};
use candle_nn::ops::{sigmoid, softmax};
use candle_nn::{Init, VarBuilder};
use chandlery_ops::Philox;
use chandlery_ops::core::{bernoulli, uniform};

/// A restricted Boltzmann machine with label units; see the [module](super) for the equations.
#[derive(Debug, Clone)]
pub struct LabelledRbm {
    weight: Tensor,
    bias: Tensor,
    visible_bias: Tensor,
    label_weight: Tensor,
    label_bias: Tensor,
}

impl LabelledRbm {
    /// Loads `weight`, `bias`, `visible_bias`, `label_weight` and `label_bias` from under `vb`. A
    /// new `VarMap` draws weights of the features as [`Rbm::init`] does, and has labels without an
    /// effect yet.
    ///
    /// # Errors
    /// When `vb` lacks one of them or has another shape.
    pub fn new(n_visible: usize, n_hidden: usize, n_classes: usize, vb: VarBuilder) -> Result<Self> {
        let drawn = Init::Randn { mean: 0., stdev: RbmConfig::new(n_visible, n_hidden).weight_stdev };
        Self::from_tensors(
            vb.get_with_hints((n_hidden, n_visible), "weight", drawn)?,
            vb.get(n_hidden, "bias")?,
            vb.get(n_visible, "visible_bias")?,
            vb.get((n_hidden, n_classes), "label_weight")?,
            vb.get(n_classes, "label_bias")?,
        )
    }

    /// Makes an RBM from its parameters, all of one float type: `weight` `[n_hidden, n_visible]`,
    /// `bias` `[n_hidden]`, `visible_bias` `[n_visible]`, `label_weight` `[n_hidden, n_classes]`
    /// and `label_bias` `[n_classes]`.
    ///
    /// # Errors
    /// When the shapes disagree or there are fewer than 2 classes.
    pub fn from_tensors(
        weight: Tensor,
        bias: Tensor,
        visible_bias: Tensor,
        label_weight: Tensor,
        label_bias: Tensor,
    ) -> Result<Self> {
        let (n_hidden, n_visible) = weight.dims2()?;
        let (_, n_classes) = label_weight.dims2()?;
        at_least_one("LabelledRbm", "n_visible", n_visible)?;
        at_least_one("LabelledRbm", "n_hidden", n_hidden)?;
        check_classes("LabelledRbm", n_classes)?;
        let wanted: [(&str, &Tensor, &[usize]); 4] = [
            ("bias", &bias, &[n_hidden]),
            ("visible_bias", &visible_bias, &[n_visible]),
            ("label_weight", &label_weight, &[n_hidden, n_classes]),
            ("label_bias", &label_bias, &[n_classes]),
        ];
        for (name, t, want) in wanted {
            if t.dims() != want {
                candle::bail!("LabelledRbm: {name} must have shape {want:?}, got {:?}", t.dims())
            }
        }
        Ok(Self { weight, bias, visible_bias, label_weight, label_bias })
    }

    /// Extends `rbm` by `n_classes` label units. Their weights and biases are 0, so they have no
    /// effect yet.
    ///
    /// The hidden units already differ, so no random weights are needed to break symmetry.
    ///
    /// # Errors
    /// When `rbm` has other than binary units, or there are fewer than 2 classes.
    pub fn from_rbm(rbm: &Rbm, n_classes: usize) -> Result<Self> {
        rbm.must_be_dense("LabelledRbm::from_rbm")?;
        let config = rbm.config();
        if config.visible != VisibleUnit::Bernoulli || config.hidden != HiddenUnit::Bernoulli {
            candle::bail!(
                "LabelledRbm::from_rbm: units must be bernoulli, got {} visible and {} hidden ones",
                config.visible,
                config.hidden
            )
        }
        check_classes("LabelledRbm::from_rbm", n_classes)?;
        let zeros = |shape: &[usize]| Tensor::zeros(shape, rbm.weight().dtype(), rbm.weight().device());
        Self::from_tensors(
            rbm.weight().clone(),
            rbm.bias().clone(),
            rbm.visible_bias().clone(),
            zeros(&[config.n_hidden, n_classes])?,
            zeros(&[n_classes])?,
        )
    }

    /// The mean of the hidden units given features `v`, `[batch, n_visible]`, and labels `y`,
    /// `[batch, n_classes]`, one-hot rows or probabilities. `[batch, n_hidden]`.
    ///
    /// # Errors
    /// When a shape differs.
    pub fn hidden_mean(&self, v: &Tensor, y: &Tensor) -> Result<Tensor> {
        let y = self.values("y", y, self.n_classes())?;
        sigmoid(&(self.input_of_features(v)? + y.matmul(&self.label_weight.t()?)?)?)
    }

    /// The mean of the features given the hidden units, `[batch, n_visible]`.
    ///
    /// # Errors
    /// When `h` is not `[batch, n_hidden]`.
    pub fn visible_mean(&self, h: &Tensor) -> Result<Tensor> {
        let h = self.values("h", h, self.n_hidden())?;
        sigmoid(&h.matmul(&self.weight)?.broadcast_add(&self.visible_bias)?)
    }

    /// The probability of each class given the hidden units, `[batch, n_classes]`.
    ///
    /// # Errors
    /// When `h` is not `[batch, n_hidden]`.
    pub fn label_mean(&self, h: &Tensor) -> Result<Tensor> {
        let h = self.values("h", h, self.n_hidden())?;
        softmax(&h.matmul(&self.label_weight)?.broadcast_add(&self.label_bias)?, D::Minus1)
    }

    /// The free energy of features with each of the classes, `[batch, n_classes]`, in nats.
    ///
    /// The features' input to the hidden units is computed once, so each class costs
    /// `O(batch · n_hidden)`.
    ///
    /// # Errors
    /// When `v` is not `[batch, n_visible]`.
    pub fn free_energies(&self, v: &Tensor) -> Result<Tensor> {
        let v = self.values("v", v, self.n_visible())?;
        let x = self.input_of_features(&v)?;
        let own = v.broadcast_mul(&self.visible_bias)?.sum(D::Minus1)?;
        let columns = self.label_weight.t()?.contiguous()?;
        let class = |c: usize| {
            let hidden = softplus(&x.broadcast_add(&columns.get(c)?)?)?.sum(D::Minus1)?;
            (&own + hidden)?.broadcast_add(&self.label_bias.get(c)?)?.neg()
        };
        let energies = (0..self.n_classes()).map(class).collect::<Result<Vec<_>>>()?;
        Tensor::stack(&energies, 1)
    }

    /// Runs `steps` Gibbs steps from features `v`, `[n, n_visible]`, and returns the means of the
    /// features in the last step.
    ///
    /// The labels `y`, `[n, n_classes]`, do not change. Both sides are drawn in every step.
    ///
    /// # Errors
    /// When a shape differs.
    pub fn gibbs(&self, v: &Tensor, y: &Tensor, steps: usize, philox: Philox) -> Result<Tensor> {
        let n = batch_of("LabelledRbm::gibbs", "v", v, self.n_visible())?;
        if y.dims() != [n, self.n_classes()] {
            candle::bail!(
                "LabelledRbm::gibbs: y must have shape [{n}, {}], got {:?}",
                self.n_classes(),
                y.dims()
            )
        }
        // The labels stand still, and so does what they put into the hidden units.
        let (v, y) = (v.to_dtype(self.weight.dtype())?, y.to_dtype(self.weight.dtype())?);
        let of_labels = y.matmul(&self.label_weight.t()?)?;
        let mut at = philox;
        let (mut states, mut means) = (v.clone(), v.clone());
        for step in 0..steps {
            let h = draw(&sigmoid(&(self.input_of_features(&states)? + &of_labels)?)?, at)?;
            at = at.advanced(n * self.n_hidden());
            means = self.visible_mean(&h)?;
            if step + 1 < steps {
                states = draw(&means, at)?;
                at = at.advanced(n * self.n_visible());
            }
        }
        Ok(means)
    }

    /// `n` rows of fair coins as features, to begin chains at.
    pub(super) fn coins(&self, n: usize, philox: Philox) -> Result<Tensor> {
        let u = uniform((n, self.n_visible()), self.weight.device(), philox)?;
        u.lt(0.5)?.to_dtype(self.weight.dtype())
    }

    /// Classes as rows of zeros with a one, in the type of the RBM: `[n]` u32 to `[n, n_classes]`.
    pub(super) fn one_hot(&self, op: &str, labels: &Tensor) -> Result<Tensor> {
        if labels.rank() != 1 || labels.dtype() != DType::U32 {
            candle::bail!("{op}: labels must be [n] u32, got {:?} {:?}", labels.dtype(), labels.dims())
        }
        let n_classes = self.n_classes();
        let highest = labels.to_vec1::<u32>()?.into_iter().max().unwrap_or(0);
        if highest as usize >= n_classes {
            candle::bail!("{op}: labels must be below n_classes = {n_classes}, got {highest}")
        }
        let classes = Tensor::arange(0u32, n_classes as u32, labels.device())?.reshape((1, n_classes))?;
        labels.unsqueeze(1)?.broadcast_eq(&classes)?.to_dtype(self.weight.dtype())
    }

    /// Values of units in the type of the weights.
    fn values(&self, name: &str, t: &Tensor, want: usize) -> Result<Tensor> {
        values_of("LabelledRbm", name, t, want, self.weight.dtype())
    }

    /// What features put into the hidden units, biases included, without labels.
    fn input_of_features(&self, v: &Tensor) -> Result<Tensor> {
        self.values("v", v, self.n_visible())?.matmul(&self.weight.t()?)?.broadcast_add(&self.bias)
    }

    /// The weights of the features, `[n_hidden, n_visible]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The weights of the labels, `[n_hidden, n_classes]`.
    pub fn label_weight(&self) -> &Tensor {
        &self.label_weight
    }

    /// The biases of the labels, `[n_classes]`.
    pub fn label_bias(&self) -> &Tensor {
        &self.label_bias
    }

    /// Number of features.
    pub fn n_visible(&self) -> usize {
        self.weight.dims()[1]
    }

    /// Number of hidden units.
    pub fn n_hidden(&self) -> usize {
        self.weight.dims()[0]
    }

    /// Number of classes, at least 2.
    pub fn n_classes(&self) -> usize {
        self.label_weight.dims()[1]
    }

    /// The parameters by the names that [`new`](Self::new) looks for.
    pub fn tensors(&self) -> [(&'static str, &Tensor); 5] {
        [
            ("weight", &self.weight),
            ("bias", &self.bias),
            ("visible_bias", &self.visible_bias),
            ("label_weight", &self.label_weight),
            ("label_bias", &self.label_bias),
        ]
    }
}

pub(super) fn check_classes(op: &str, n_classes: usize) -> Result<()> {
    if n_classes < 2 {
        candle::bail!("{op}: n_classes must be at least 2, got {n_classes}")
    }
    Ok(())
}

/// Draws are made in f32 whatever the type of the RBM is.
fn draw(mean: &Tensor, philox: Philox) -> Result<Tensor> {
    bernoulli(&mean.to_dtype(DType::F32)?, philox)?.to_dtype(mean.dtype())
}
