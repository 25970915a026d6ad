//! Products of f32 numbers by the tensor cores, with the precision of f32.
//!
//! [`split_rows_`](crate::arrays::split_rows_) and
//! [`split_columns_`](crate::arrays::split_columns_) make sums of two f16 numbers of each, and the
//! product of both second parts, which is below the last bit of f32, is left out. Three products of
//! 16-bit numbers take less time than one of f32 numbers.
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `a` `b` | numbers in two parts | `[2, m, k]`, `[2, k, n]` f16 |
//! | `r` `s` | `rows`, `cols` | `[m]`, `[n]` f32 |
//! | `c` | `r_i s_j Σ a_il b_lj` | `[m, n]` f32 |
#[cfg(feature = "cuda")]
use super::operands::starts_on;
#[cfg(feature = "cuda")]
use super::warpgroup_operands::Product;
use super::warpgroup_tile::Tile;
use crate::core::check::expect;
use crate::core::limits::Limits;
#[cfg(feature = "cuda")]
use crate::core::op::{Io, Kernel, operands};
use crate::layers::gemm::PartSizes;
use candle::{DType, Device, Result, Tensor};

const OP: &str = "product_of_split_";

/// What an H200 does in its place, for the choice alone: FLOP and bytes of weights a nanosecond of
/// an f32 product by cuBLAS, whose tiles have so many rows, and its nanoseconds besides; numbers
/// that are split in a nanosecond, and nanoseconds of a launch.
mod speed {
    pub const FLOP: f64 = 50_000.;
    pub const ROWS: usize = 64;
    pub const BYTES: f64 = 4_000.;
    pub const PRODUCT: f64 = 5_000.;
    pub const SPLIT: f64 = 375.;
    pub const LAUNCH: f64 = 2_500.;
}

/// Whether the three products of a step of a dense layer of f32 numbers, forward, backward and of
/// the gradient, are faster split than as they are: on GPUs of capability 9.0, from 64 rows on
/// of wide layers and some hundred of narrow ones.
///
/// # Errors
/// When the device fails.
pub fn split_products_are_faster(
    device: &Device,
    rows: usize,
    n_outputs: usize,
    n_inputs: usize,
) -> Result<bool> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            let limits = crate::core::cuda::Gpu::of(device)?.limits();
            Ok(are_faster(limits, [rows, n_outputs, n_inputs]))
        }
        _ => {
            let _ = (rows, n_outputs, n_inputs);
            Ok(false)
        }
    }
}

#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
fn are_faster(limits: Limits, [rows, n_outputs, n_inputs]: [usize; 3]) -> bool {
    let whole = [n_outputs, n_inputs].iter().all(|n| *n > 0 && n.is_multiple_of(8));
    if !limits.has_warpgroup_products() || !whole || rows == 0 {
        return false;
    }
    let deep = rows.next_multiple_of(8);
    let products = [[rows, n_outputs, n_inputs], [rows, n_inputs, n_outputs], [n_outputs, n_inputs, deep]];
    let of_tiles = products.map(|sizes| {
        Tile::of(limits, sizes, [2, 2]).map_or(f64::INFINITY, |tile| tile.nanoseconds(limits, sizes))
    });
    let weights = (n_outputs * n_inputs) as f64;
    let numbers = weights + (rows * (n_inputs + 2 * n_outputs)) as f64;
    let split = of_tiles.iter().sum::<f64>() + numbers / speed::SPLIT + 4. * speed::LAUNCH;
    let in_tiles = if rows < speed::ROWS { rows } else { rows.next_multiple_of(speed::ROWS) };
    let whole = (2 * in_tiles + rows) as f64;
    let plain = 2. * weights * whole / speed::FLOP + 3. * (4. * weights / speed::BYTES + speed::PRODUCT);
    split < plain
}

/// `c_ij ← rows_i cols_j Σ_l a_il b_lj`, where `a` and `b` are sums of two f16 numbers.
///
/// `c` is `[m, n]` f32, contiguous; `a` `[2, m, k]` and `b` `[2, k, n]` f16, each of the two
/// contiguous or, of `b`, the transpose of a contiguous matrix; `rows` is `[m]` and `cols` `[n]`
/// f32, by default 1: the scales of [`split_rows_`](crate::arrays::split_rows_). The error of an
/// entry is at most some 2⁻²² of the sizes of its terms added up, as that of an f32 product is, and
/// 2⁻³⁸ of that sum if all terms were as large as the largest numbers of their lines. Sums are
/// added outside the tensor cores.
///
/// Cost: `6mnk` FLOP of the tensor cores. It is one kernel on GPUs of capability 9.0 where `k` is a
/// multiple of 8, `n` of 4, or of 8 where `b` is not transposed, and views begin on 16 bytes.
/// Otherwise this allocates, computes in f64, and cannot be recorded.
///
/// # Errors
/// When shapes, types, devices or layouts do not fit.
pub fn product_of_split_(
    c: &Tensor,
    (a, rows): (&Tensor, &Tensor),
    (b, cols): (&Tensor, Option<&Tensor>),
) -> Result<()> {
    let PartSizes { a_parts, b_parts, m, n, .. } = PartSizes::of(a, b)?;
    if (a_parts, b_parts) != (2, 2) || [a, b].iter().any(|t| t.dtype() != DType::F16) {
        candle::bail!(
            "{OP}: a and b must be f16 in two parts, got {:?} {:?} and {:?} {:?}",
            a.dtype(),
            a.dims(),
            b.dtype(),
            b.dims()
        )
    }
    expect(OP, "c", c, &[DType::F32], &[m, n])?;
    expect(OP, "rows", rows, &[DType::F32], &[m])?;
    if let Some(cols) = cols {
        expect(OP, "cols", cols, &[DType::F32], &[n])?;
    }
    #[cfg(feature = "cuda")]
    if cols.is_none_or(|cols| starts_on(4, cols))
        && let Some(product) = Product::of(c, DType::F16, a, b, |parts, _| parts == [2, 2])?
    {
        let io = operands(OP).write("c", c).read("a", a).read("b", b);
        return io.read("rows", rows).maybe("cols", cols).run(&Fused { product });
    }
    c.slice_set(&product_of_split_reference((a, rows), (b, cols))?, 0, 0)
}

/// The same computed with candle's own ops in f64, as a new tensor. Tests compare
/// [`product_of_split_`] with it.
///
/// # Errors
/// When shapes do not fit.
pub fn product_of_split_reference(
    (a, rows): (&Tensor, &Tensor),
    (b, cols): (&Tensor, Option<&Tensor>),
) -> Result<Tensor> {
    let wide = |t: &Tensor| t.to_dtype(DType::F64);
    let c = wide(a)?.sum(0)?.matmul(&wide(b)?.sum(0)?)?.broadcast_mul(&wide(rows)?.unsqueeze(1)?)?;
    let c = match cols {
        Some(cols) => c.broadcast_mul(&wide(cols)?)?,
        None => c,
    };
    c.to_dtype(DType::F32)
}

/// The product in one kernel.
#[cfg(feature = "cuda")]
struct Fused {
    product: Product,
}

#[cfg(feature = "cuda")]
impl Kernel for Fused {
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let of = &self.product;
        let ([c], [a, b, rows, cols]) = io.parts()?;
        let (mut c, rows, cols) = (c.elements::<f32>()?, rows.elements::<f32>()?, cols.maybe::<f32>()?);
        let views = of.views::<half::f16>(a, b)?;
        let maps = of.maps(gpu, &views)?;
        let name = if of.transposed { "product_split_transposed" } else { "product_split" };
        let launch = gpu.launch(OP, "sm_90a/product_split", &of.kernel(name))?;
        let launch = launch.write(&mut c).read(&rows).maybe(&cols).num(maps.a).num(maps.b).num(of.extent());
        // SAFETY: (float*, 2 × const float*, the second maybe null, 2 × TensorMap, Extent). The op
        // checked shapes and types, `Product::of` and `starts_on` that rows, parts, results and
        // scales begin on 16 bytes; maps have the blocks of the tile.
        unsafe { of.lay_out(launch).go() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn split_products_are_for_many_rows_of_whole_lines_on_capability_9_0() {
        for gpu in gpus::ALL {
            let nine = gpu.has_warpgroup_products();
            let faster = |sizes| are_faster(gpu, sizes);
            assert_eq!(faster([4096, 4096, 4096]), nine, "{gpu:?}");
            assert_eq!(faster([193, 16000, 2304]), nine, "{gpu:?}");
            // The one of parity's network.
            assert_eq!(faster([2052, 1024, 1024]), nine, "{gpu:?}");
            assert!(!faster([1, 16384, 16384]), "memory binds: {gpu:?}");
            assert!(!faster([4096, 64, 64]), "launches bind: {gpu:?}");
            assert!(!faster([4096, 4100, 4096]) && !faster([4096, 4096, 4100]), "lines apart: {gpu:?}");
            assert!(!faster([0, 4096, 4096]), "{gpu:?}");
        }
    }
}
