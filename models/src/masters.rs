//! Weights in training, their velocity, and how products read them.
//!
//! | storage | weights | velocity | copy for products | bytes of a weight | that an update moves |
//! |---|---|---|---|---|---|
//! | [`F32`](Storage::F32) | f32 | f32 | none, or of 16 bits in `parts` | 8 + 2 parts | 16 + 2 parts |
//! | [`Bf16Velocity`](Storage::Bf16Velocity) | f32 | bf16 | bf16 | 8 | 14 |
//! | [`Halves`](Storage::Halves) | f32, in halves of 16 bits | bf16 | the upper halves | 6 | 12 |
//! | [`Bf16`](Storage::Bf16) | bf16 | bf16 | the weights themselves | 4 | 8 |
//!
//! Models and checkpoints hold whole weights. [`Masters::weight`] gives them and
//! [`Masters::set_weight`] takes them back, and nobody else knows of halves: those of
//! [`halves_into_`], in which no bit is lost.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::{halves_into_, joined_into_, scale_into_, split_into_};
use chandlery_ops::layers::CdOperands;

/// What an f16 copy of weights is multiplied by: small f16 numbers lose digits.
const F16_WEIGHT_SCALE: f32 = 64.;

/// How the numbers of a product are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// As they are; the product rounds them to its precision.
    F32,
    /// Rounded to bf16.
    Bf16,
    /// Rounded to f16.
    F16,
    /// The sum of two f16 numbers.
    F16Pair,
}

impl Format {
    /// The type of states and of the copy of the weights.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 | Self::F16Pair => DType::F16,
        }
    }

    /// Numbers that one is the sum of.
    pub fn parts(self) -> usize {
        if self == Self::F16Pair { 2 } else { 1 }
    }

    /// How many planes further on second parts are, which `planes` first ones precede.
    pub fn low(self, planes: usize) -> Option<usize> {
        (self.parts() == 2).then_some(planes)
    }

    /// What the copy of the weights is multiplied by.
    pub fn weight_scale(self) -> f32 {
        match self {
            Self::F32 | Self::Bf16 => 1.,
            Self::F16 | Self::F16Pair => F16_WEIGHT_SCALE,
        }
    }

    /// What a product with the copy is multiplied by.
    pub fn product_scale(self) -> f32 {
        1. / self.weight_scale()
    }
}

/// Stores `scale · x` to a matrix, or to the parts of one, `[parts, ..]`.
pub(crate) fn store(out: &Tensor, x: &Tensor, scale: f32) -> Result<()> {
    match *out.dims() {
        [1, ..] if out.rank() > x.rank() => scale_into_(&out.get(0)?, x, scale),
        [_, ..] if out.rank() > x.rank() => split_into_(out, x, scale),
        _ => scale_into_(out, x, scale),
    }
}

/// How weights and their velocity are stored, a line of the table of the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    F32,
    Bf16Velocity,
    /// Where the update takes them: `cd_update_takes_halves` and `patch_step_takes_halves`.
    Halves,
    Bf16,
}

impl Storage {
    /// Planes of the parameters, of which a second one is the velocity, and their type.
    fn params(self) -> (usize, DType) {
        match self {
            Self::F32 => (2, DType::F32),
            Self::Bf16Velocity => (1, DType::F32),
            Self::Halves => (1, DType::I16),
            Self::Bf16 => (1, DType::BF16),
        }
    }
}

/// The weights of a layer, their velocity, and the copy that products read. Clones share memory.
#[derive(Debug, Clone)]
pub(crate) struct Masters {
    pub format: Format,
    /// `[2, ..]`: weights, velocity; or the weights alone, `[1, ..]`, in halves the lower ones.
    stored: Tensor,
    /// The velocity where it is stored apart, bf16.
    pub apart: Option<Tensor>,
    /// `[parts, ..]`: the weights times [`Format::weight_scale`] as products read them, where that
    /// is not f32; the upper ones of halves, and `stored` itself where that is bf16.
    pub copy: Option<Tensor>,
}

impl Masters {
    /// Zeros, of weights of this shape.
    pub fn zeros(shape: &[usize], storage: Storage, format: Format, device: &Device) -> Result<Self> {
        let (planes, dtype) = storage.params();
        Self::of(Tensor::zeros([&[planes], shape].concat(), dtype, device)?, format)
    }

    /// With weights in this memory, `[2, ..]` with their velocity. What products read is 0 until
    /// [`set_weight`](Self::set_weight).
    pub fn of(stored: Tensor, format: Format) -> Result<Self> {
        let (planes, shape) = (stored.dim(0)?, &stored.dims()[1..]);
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, stored.device());
        let apart = (planes == 1).then(|| zeros(shape, DType::BF16)).transpose()?;
        let copy = match (stored.dtype(), format) {
            (DType::BF16, _) => Some(stored.clone()),
            (_, Format::F32) => None,
            _ => Some(zeros(&[&[format.parts()], shape].concat(), format.dtype())?),
        };
        Ok(Self { format, stored, apart, copy })
    }

    /// The upper halves, where the weights are in halves, and the lower ones.
    fn halves(&self) -> Result<Option<(Tensor, Tensor)>> {
        match &self.copy {
            Some(upper) if self.stored.dtype() == DType::I16 => {
                Ok(Some((upper.get(0)?, self.stored.get(0)?)))
            }
            _ => Ok(None),
        }
    }

    /// The weights, f32 unless only bf16 ones are stored. They share memory with these unless they
    /// are in halves.
    pub fn weight(&self) -> Result<Tensor> {
        let Some((upper, lower)) = self.halves()? else { return self.stored.get(0) };
        let whole = Tensor::zeros(upper.shape(), DType::F32, upper.device())?;
        joined_into_(&whole, &upper, &lower)?;
        Ok(whole)
    }

    /// Takes over what [`weight`](Self::weight) gave, after changes, and brings what products read
    /// up to date with it.
    pub fn set_weight(&self, weight: &Tensor) -> Result<()> {
        match (self.halves()?, &self.copy) {
            (Some((upper, lower)), _) => halves_into_(&upper, &lower, weight),
            (None, Some(copy)) if !self.are_read() => store(copy, weight, self.format.weight_scale()),
            _ => Ok(()),
        }
    }

    /// `[2, ..]`: the weights and the velocity; or the weights alone, `[1, ..]`, where the velocity
    /// is stored apart.
    pub fn params(&self) -> Result<Tensor> {
        if self.halves()?.is_some() { self.weight()?.unsqueeze(0) } else { Ok(self.stored.clone()) }
    }

    /// The velocity, f32, or bf16 where it is stored apart.
    pub fn velocity(&self) -> Result<Tensor> {
        self.apart.clone().map_or_else(|| self.stored.get(1), Ok)
    }

    /// `[parts, ..]`: the weights times [`Format::weight_scale`] as products read them.
    pub fn operand(&self) -> Result<Tensor> {
        self.copy.clone().map_or_else(|| self.stored.narrow(0, 0, 1), Ok)
    }

    /// What an update changes.
    pub fn operands<'a>(
        &'a self,
        hidden_state: &'a Tensor,
        visible_state: &'a Tensor,
        counter: &'a Tensor,
    ) -> CdOperands<'a> {
        CdOperands {
            params: &self.stored,
            velocity: self.apart.as_ref(),
            copy: self.copy.as_ref().filter(|_| !self.are_read()),
            hidden_state,
            visible_state,
            counter,
        }
    }

    /// Whether products read the weights themselves.
    fn are_read(&self) -> bool {
        self.stored.dtype() == DType::BF16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle::Device::Cpu;
    use chandlery_ops::Philox;
    use chandlery_ops::core::normal;

    fn numbers(t: &Tensor) -> Result<Vec<f32>> {
        t.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
    }

    /// Weights that are as large as asked for, as `storage` holds them.
    fn given(storage: Storage, format: Format, scale: f64) -> Result<(Tensor, Masters)> {
        let given = (normal((5, 24), &Cpu, Philox::new(3, 0))? * scale)?;
        let masters = Masters::zeros(given.dims(), storage, format, &Cpu)?;
        let weight = masters.weight()?;
        assert_eq!(numbers(&weight)?, vec![0.; 120], "{storage:?}");
        scale_into_(&weight, &given, 1.)?;
        masters.set_weight(&weight)?;
        Ok((given, masters))
    }

    #[test]
    fn weights_come_back_with_the_bits_that_were_given() -> Result<()> {
        for (storage, format) in [
            (Storage::F32, Format::F32),
            (Storage::F32, Format::F16Pair),
            (Storage::Bf16Velocity, Format::Bf16),
            (Storage::Halves, Format::Bf16),
        ] {
            let (given, masters) = given(storage, format, 0.1)?;
            let clone = masters.clone();
            assert_eq!(numbers(&clone.weight()?)?, numbers(&given)?, "{storage:?} {format:?}");
            assert_eq!(numbers(&clone.params()?.get(0)?)?, numbers(&given)?, "{storage:?} {format:?}");
            // And again, after what was given has changed.
            let weight = clone.weight()?;
            scale_into_(&weight, &given.neg()?, 1.)?;
            clone.set_weight(&weight)?;
            assert_eq!(numbers(&masters.weight()?)?, numbers(&given.neg()?)?, "{storage:?} {format:?}");
        }
        let (given, masters) = given(Storage::Bf16, Format::Bf16, 0.1)?;
        assert_eq!(numbers(&masters.weight()?)?, numbers(&given.to_dtype(DType::BF16)?)?);
        Ok(())
    }

    #[test]
    fn products_read_the_weights_to_the_digits_of_their_format() -> Result<()> {
        let bf16 = (Format::Bf16, 2f32.powi(-8));
        for (storage, (format, share)) in [
            (Storage::F32, (Format::F32, 0.)),
            (Storage::F32, (Format::F16, 2f32.powi(-11))),
            (Storage::F32, (Format::F16Pair, 2f32.powi(-22))),
            (Storage::Bf16Velocity, bf16),
            (Storage::Halves, bf16),
            (Storage::Bf16, bf16),
        ] {
            let (given, masters) = given(storage, format, 4.)?;
            let read =
                (masters.operand()?.to_dtype(DType::F32)?.sum(0)? * f64::from(format.product_scale()))?;
            for (read, given) in numbers(&read)?.into_iter().zip(numbers(&given)?) {
                let most = share * given.abs() + 1e-9;
                assert!((read - given).abs() <= most, "{storage:?} {format:?}: {read} for {given}");
            }
        }
        Ok(())
    }

    #[test]
    fn an_update_gets_what_is_stored() -> Result<()> {
        let none = Tensor::zeros(1, DType::F32, &Cpu)?;
        for (storage, format, params, apart, copied) in [
            (Storage::F32, Format::F32, (2, DType::F32), false, false),
            (Storage::F32, Format::F16, (2, DType::F32), false, true),
            (Storage::Bf16Velocity, Format::Bf16, (1, DType::F32), true, true),
            (Storage::Halves, Format::Bf16, (1, DType::I16), true, true),
            (Storage::Bf16, Format::Bf16, (1, DType::BF16), true, false),
        ] {
            let masters = Masters::zeros(&[5, 24], storage, format, &Cpu)?;
            let to = masters.operands(&none, &none, &none);
            assert_eq!((to.params.dim(0)?, to.params.dtype()), params, "{storage:?}");
            assert_eq!((to.velocity.is_some(), to.copy.is_some()), (apart, copied), "{storage:?} {format:?}");
            assert_eq!(masters.velocity()?.dims(), [5, 24]);
            assert_eq!(masters.params()?.dims(), [params.0, 5, 24]);
        }
        Ok(())
    }
}
