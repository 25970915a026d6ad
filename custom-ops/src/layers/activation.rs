//! The activations of dense layers. The CPU and CUDA give the same bits;
//! `kernels/layers/activation.cuh` holds the CUDA code.
use crate::core::math::{exp, sigmoid};
use candle::{Result, Tensor};

/// The function `f` that a unit of a dense layer applies to its pre-activation `x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// `x`
    #[default]
    Identity,
    /// `1 / (1 + e⁻ˣ)`
    Sigmoid,
    /// `max(0, x)`, whose derivative at 0 is taken as 0
    Relu,
    /// `tanh x`
    Tanh,
}

impl Activation {
    /// The name of its kernels.
    #[cfg(feature = "cuda")]
    pub(crate) fn kernel(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Sigmoid => "sigmoid",
            Self::Relu => "relu",
            Self::Tanh => "tanh",
        }
    }

    /// `f(x)`, elementwise, computed with candle's own ops, so it is differentiable.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn apply(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Identity => Ok(x.clone()),
            Self::Sigmoid => (x.neg()?.exp()? + 1.)?.recip(),
            Self::Relu => x.relu(),
            Self::Tanh => x.tanh(),
        }
    }

    /// `f'(x)` as a function of `y = f(x)`, elementwise, computed with candle's own ops.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn derivative(self, y: &Tensor) -> Result<Tensor> {
        match self {
            Self::Identity => y.ones_like(),
            Self::Sigmoid => y * y.affine(-1., 1.)?,
            Self::Relu => y.gt(0.)?.to_dtype(y.dtype()),
            Self::Tanh => y.sqr()?.affine(-1., 1.),
        }
    }
}

/// Calls a function that is generic over the activation, so that its loops are compiled for each.
macro_rules! with_activation {
    ($activation:expr, $f:ident ( $($arg:expr),* $(,)? )) => {
        match $activation {
            $crate::layers::activation::Activation::Identity => $f::<{ $crate::layers::activation::IDENTITY }>($($arg),*),
            $crate::layers::activation::Activation::Sigmoid => $f::<{ $crate::layers::activation::SIGMOID }>($($arg),*),
            $crate::layers::activation::Activation::Relu => $f::<{ $crate::layers::activation::RELU }>($($arg),*),
            $crate::layers::activation::Activation::Tanh => $f::<{ $crate::layers::activation::TANH }>($($arg),*),
        }
    };
}
pub(crate) use with_activation;

pub(crate) const IDENTITY: u8 = 0;
pub(crate) const SIGMOID: u8 = 1;
pub(crate) const RELU: u8 = 2;
pub(crate) const TANH: u8 = 3;

/// `f(x)`
#[inline(always)]
pub(crate) fn activate<const F: u8>(x: f32) -> f32 {
    match F {
        SIGMOID => sigmoid(x),
        // A NaN stays.
        RELU => {
            if x <= 0. {
                0.
            } else {
                x
            }
        }
        TANH => tanh(x),
        _ => x,
    }
}

/// `delta · f'(x)` for `y = f(x)`.
#[inline(always)]
pub(crate) fn through<const F: u8>(delta: f32, y: f32) -> f32 {
    match F {
        SIGMOID => delta * (y * (1. - y)),
        RELU => {
            if y <= 0. {
                0.
            } else {
                delta
            }
        }
        TANH => delta * (1. - y * y),
        _ => delta,
    }
}

/// The hyperbolic tangent as Cephes forms it (Moshier 1989, `tanhf.c`): a polynomial near 0, else
/// by way of `e^−2|x|`.
#[inline(always)]
// The coefficients are written as their source prints them.
#[allow(clippy::excessive_precision)]
fn tanh(x: f32) -> f32 {
    let z = x * x;
    let p = -5.704_988_727_45e-3 * z + 2.063_908_879_54e-2;
    let p = p * z - 5.373_971_555_31e-2;
    let p = p * z + 1.333_144_220_36e-1;
    let p = p * z - 3.333_328_194_22e-1;
    let near = p * z * x + x;
    let e = exp(2. * -x.abs());
    let far = ((1. - e) / (1. + e)).copysign(x);
    if x.abs() < 0.625 { near } else { far }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_is_within_two_ulp_of_the_truth_and_odd() {
        let mut x = 1e-30f32;
        while x < 40. {
            let (got, want) = (tanh(x), f64::from(x).tanh());
            let ulps = (f64::from(got) - want).abs() / (want * f64::from(f32::EPSILON));
            assert!(ulps < 2., "tanh({x}) = {got}, want {want}: {ulps} ulp");
            assert_eq!(tanh(-x), -got);
            x *= 1.001;
        }
        assert_eq!((tanh(0.), tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (0., 1., -1.));
        assert!(tanh(f32::NAN).is_nan());
    }
}
