//! What the tests share: devices, tolerances, readable failures.
use candle::{DType, Device, Result, Tensor};

/// The CPU, and with the feature `cuda` the first GPU, on a stream of its own as the bins use it.
///
/// # Errors
/// With the feature, when there is no GPU: a failure, not a skip.
pub fn devices() -> Result<Vec<Device>> {
    #[cfg(feature = "cuda")]
    return Ok(vec![Device::Cpu, chandlery_ops::core::cuda_device(0)?]);
    #[cfg(not(feature = "cuda"))]
    return Ok(vec![Device::Cpu]);
}

/// Those of the sizes that a test takes here: with the feature `cuda` all, without it those that cost
/// at most 50 million products. Larger ones are there for the kernels of a GPU.
pub fn sizes_here<T: Copy>(sizes: &[T], products: impl Fn(T) -> usize) -> impl Iterator<Item = T> {
    sizes.iter().copied().filter(move |&size| cfg!(feature = "cuda") || products(size) <= 50_000_000)
}

/// Panics with the worst entry unless `|got - want| <= atol + rtol · |want|` everywhere.
///
/// Any float type and device. A NaN on one side only is a mismatch.
///
/// # Errors
/// When a tensor cannot be read.
#[track_caller]
pub fn assert_close(what: &str, got: &Tensor, want: &Tensor, rtol: f32, atol: f32) -> Result<()> {
    assert_eq!(got.dims(), want.dims(), "{what}: shapes differ (got, want)");
    let (got, want) = (values(got)?, values(want)?);
    let (mut worst, mut used, mut bad) = (0, 0f32, 0);
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        if got.is_nan() && want.is_nan() || got == want {
            continue;
        }
        let part = (got - want).abs() / (atol + rtol * want.abs());
        if part.is_nan() || part > 1. {
            bad += 1;
        }
        if part.is_nan() || part > used {
            (worst, used) = (i, part);
        }
    }
    assert!(
        bad == 0,
        "{what}: {bad} of {} entries differ; worst at flat index {worst}: got {}, want {} \
         ({used:.2} times the tolerance, rtol {rtol:e}, atol {atol:e})",
        got.len(),
        got[worst],
        want[worst],
    );
    Ok(())
}

/// Panics with the first entry that differs in any bit; all NaNs count as the same.
///
/// # Errors
/// When a tensor cannot be read.
#[track_caller]
pub fn assert_same_bits(what: &str, got: &Tensor, want: &Tensor) -> Result<()> {
    assert_eq!(
        (got.dims(), got.dtype()),
        (want.dims(), want.dtype()),
        "{what}: shapes or types differ (got, want)"
    );
    let (got, want) = (values(got)?, values(want)?);
    let differ = |&i: &usize| got[i].to_bits() != want[i].to_bits() && !(got[i].is_nan() && want[i].is_nan());
    if let Some(i) = (0..got.len()).find(differ) {
        let bad = (0..got.len()).filter(differ).count();
        panic!(
            "{what}: {bad} of {} entries differ; first at flat index {i}: got {:e} ({:08x}), want {:e} ({:08x})",
            got.len(),
            got[i],
            got[i].to_bits(),
            want[i],
            want[i].to_bits(),
        );
    }
    Ok(())
}

/// The entries in row-major order, as f32 (exact for bf16 and f16).
fn values(x: &Tensor) -> Result<Vec<f32>> {
    x.flatten_all()?.to_dtype(DType::F32)?.to_vec1()
}

/// The snippets of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
