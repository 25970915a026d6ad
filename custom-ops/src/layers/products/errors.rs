//! The later half of a step of a denoising autoencoder: what its two other products give.
//!
//! ```text
//! errors   v = scale · a b + bias,  out = t − sigmoid(v);   gathered += softplus(v) − t v,  out²
//! deltas   out = y (1 − y) · scale · a b
//! ```
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `a` `b` | numbers in two parts, see [`gemm_parts_`](crate::layers::gemm_parts_), or in one | `[2, m, k]`, `[2, k, n]` f16, or `[1, …]` f16 or bf16 |
//! | `t` | `target`, in `[0, 1]` | `[m, n]` f32 |
//! | `out` `y` | planes `at`, `of`; their second parts, if any, `low` planes further on | `[n_planes, m, n]` of the same type |
//!
//! Source: Vincent et al., "Stacked denoising autoencoders", JMLR 11, 2010, section 2:
//! cross-entropy with sigmoid units.
#[cfg(feature = "cuda")]
use super::errors_cuda;
use super::{DELTAS, ERRORS};
use crate::arrays::scale::scale_into_;
use crate::core::check::expect;
use candle::{DType, Device, Result, Tensor};

/// How many places the sums of [`errors_of_product_`] need for products of `[m, k]` by `[k, n]` on
/// `device`.
///
/// # Errors
/// When the device fails.
pub fn error_places(device: &Device, m: usize, n: usize, k: usize) -> Result<usize> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => errors_cuda::places(device, m, n, k),
        _ => {
            let _ = (m, n, k);
            Ok(1)
        }
    }
}

/// Writes `target − sigmoid(scale · a b + bias)` to plane `at` of `planes`, its second part, if it
/// is to have one, to plane `at + low`, and adds the sum of the cross-entropies to `gathered[0]` and of the squared
/// errors to `gathered[1]`.
///
/// `a` is `[2, m, k]` and `b` `[2, k, n]` f16, numbers in two parts as for
/// [`gemm_parts_`](crate::layers::gemm_parts_), and `planes` are f16; without `low` they are
/// `[1, …]` and all are f16 or all bf16. `bias` `[n]` and `target` `[m, n]`, in `[0, 1]`,
/// are f32, `planes` `[n_planes, m, n]`. `gathered` is `[2, places]` f64 with at least
/// [`error_places`] of them; the sums are those over all places. Sums have one order on one device.
/// A NaN makes sums NaN.
///
/// Where products do not fuse ([`two_part_products_fuse`](crate::layers::two_part_products_fuse)),
/// this allocates, and cannot be recorded.
///
/// # Errors
/// When shapes, types or devices do not fit.
#[expect(clippy::too_many_arguments, reason = "a product and the errors of it")]
pub fn errors_of_product_(
    planes: &Tensor,
    (at, low): (usize, Option<usize>),
    a: &Tensor,
    b: &Tensor,
    scale: f32,
    bias: &Tensor,
    target: &Tensor,
    gathered: &Tensor,
) -> Result<()> {
    let (m, n) = check_planes(ERRORS, planes, low, &[at])?;
    let k = check_product(ERRORS, a, b, low, m, n)?;
    expect(ERRORS, "bias", bias, &[DType::F32], &[n])?;
    expect(ERRORS, "target", target, &[DType::F32], &[m, n])?;
    let places = error_places(planes.device(), m, n, k)?;
    match *gathered.dims() {
        [2, found] if found >= places => {
            expect(ERRORS, "gathered", gathered, &[DType::F64], &[2, found])?;
        }
        _ => candle::bail!("{ERRORS}: gathered must be [2, {places} or more], got {:?}", gathered.dims()),
    }
    #[cfg(feature = "cuda")]
    if let Some(fused) = errors_cuda::Errors::fits(planes, (at, low), a, b, scale, bias, target)? {
        return fused.run(planes, a, b, bias, target, gathered);
    }
    let (errors, sums) = errors_of_product_reference(a, b, scale, bias, target)?;
    store_parts(planes, at, low, &errors)?;
    let first = gathered.narrow(1, 0, 1)?;
    gathered.slice_set(&(first + sums.unsqueeze(1)?)?.contiguous()?, 1, 0)
}

/// Writes `y (1 − y) · scale · a b` to plane `at` of `planes`, its second part to plane `at + low`,
/// where `y` is the sum of planes `of` and `of + low`; without `low` both have one part.
///
/// `a`, `b` and `planes` are those of [`errors_of_product_`]. Where products do not fuse
/// ([`two_part_products_fuse`](crate::layers::two_part_products_fuse)), this allocates, and cannot
/// be recorded.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn deltas_of_product_(
    planes: &Tensor,
    (at, of, low): (usize, usize, Option<usize>),
    a: &Tensor,
    b: &Tensor,
    scale: f32,
) -> Result<()> {
    let (m, n) = check_planes(DELTAS, planes, low, &[at, of])?;
    check_product(DELTAS, a, b, low, m, n)?;
    #[cfg(feature = "cuda")]
    if let Some(fused) = errors_cuda::Deltas::fits(planes, (at, of, low), a, b, scale)? {
        return fused.run(planes, a, b);
    }
    let part = |plane: usize| planes.get(plane)?.to_dtype(DType::F32);
    let units = match low {
        Some(low) => (part(of)? + part(of + low)?)?,
        None => part(of)?,
    };
    store_parts(planes, at, low, &deltas_of_product_reference(a, b, scale, &units)?)
}

/// Errors, `[m, n]` f32, and both sums, `[2]` f64, computed with candle's own ops in f64. Tests
/// compare [`errors_of_product_`] with it.
///
/// # Errors
/// When shapes do not fit.
pub fn errors_of_product_reference(
    a: &Tensor,
    b: &Tensor,
    scale: f32,
    bias: &Tensor,
    target: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let v = product(a, b, scale)?.broadcast_add(&bias.to_dtype(DType::F64)?)?;
    let t = target.to_dtype(DType::F64)?;
    let small = v.abs()?.neg()?.exp()?;
    let softplus = (v.relu()? + (&small + 1.)?.log()?)?;
    let sigmoid = ((v.neg()?.exp()? + 1.)?).recip()?;
    let errors = (&t - sigmoid)?;
    let loss = (softplus - (t * v)?)?.sum_all()?;
    let sums = Tensor::stack(&[&loss, &errors.sqr()?.sum_all()?], 0)?;
    Ok((errors.to_dtype(DType::F32)?, sums))
}

/// Deltas, `[m, n]` f32, of units `y` `[m, n]`, computed with candle's own ops in f64. Tests
/// compare [`deltas_of_product_`] with it.
///
/// # Errors
/// When shapes do not fit.
pub fn deltas_of_product_reference(a: &Tensor, b: &Tensor, scale: f32, y: &Tensor) -> Result<Tensor> {
    let y = y.to_dtype(DType::F64)?;
    let slope = (&y - y.sqr()?)?;
    (product(a, b, scale)? * slope)?.to_dtype(DType::F32)
}

/// `scale · a b` in f64.
fn product(a: &Tensor, b: &Tensor, scale: f32) -> Result<Tensor> {
    let whole = |t: &Tensor| t.to_dtype(DType::F64)?.sum(0);
    whole(a)?.matmul(&whole(b)?)? * f64::from(scale)
}

/// Stores `x` to plane `at`, or as the sum of it and the one `low` further on.
fn store_parts(planes: &Tensor, at: usize, low: Option<usize>, x: &Tensor) -> Result<()> {
    let (x, high) = (x.contiguous()?, planes.get(at)?);
    scale_into_(&high, &x, 1.)?;
    let Some(low) = low else { return Ok(()) };
    scale_into_(&planes.get(at + low)?, &(x - high.to_dtype(DType::F32)?)?, 1.)
}

/// The type of numbers in as many parts as there are with `low`, and these.
fn kind(low: Option<usize>) -> (&'static [DType], usize) {
    match low {
        Some(_) => (&[DType::F16], 2),
        None => (&[DType::F16, DType::BF16], 1),
    }
}

/// Checks the planes named and their second parts; returns their shape.
fn check_planes(op: &str, planes: &Tensor, low: Option<usize>, named: &[usize]) -> Result<(usize, usize)> {
    let &[n_planes, m, n] = planes.dims() else {
        candle::bail!("{op}: planes must be [n_planes, m, n], got shape {:?}", planes.dims())
    };
    expect(op, "planes", planes, kind(low).0, &[n_planes, m, n])?;
    for (i, &plane) in named.iter().enumerate() {
        let apart = named[..i].iter().all(|&other| Some(plane.abs_diff(other)) != low && plane != other);
        if low == Some(0) || plane + low.unwrap_or(0) >= n_planes || !apart {
            candle::bail!(
                "{op}: planes {named:?} and those {low:?} further on must be different ones of {n_planes}"
            )
        }
    }
    Ok((m, n))
}

/// Checks that `a` and `b` are numbers in as many parts as there are with `low`, and their product
/// is `[m, n]`; returns the length of its sums.
fn check_product(op: &str, a: &Tensor, b: &Tensor, low: Option<usize>, m: usize, n: usize) -> Result<usize> {
    let parts = kind(low).1;
    match (a.dims(), b.dims()) {
        (&[of_a, rows, k], &[of_b, depth, columns])
            if (of_a, of_b) == (parts, parts) && (rows, columns) == (m, n) && k == depth =>
        {
            Ok(k)
        }
        _ => candle::bail!(
            "{op}: a and b must be [{parts}, {m}, k] and [{parts}, k, {n}], got {:?} and {:?}",
            a.dims(),
            b.dims()
        ),
    }
}
