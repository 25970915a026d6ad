//! Opponent colour planes, in which white noise stays white.
//!
//! ```text
//! ⎡o₀⎤   ⎡ 1/√3   1/√3   1/√3⎤ ⎡R⎤      luma, of which a photograph has most
//! ⎢o₁⎥ = ⎢ 1/√2    0    −1/√2⎥ ⎢G⎥      red against blue
//! ⎣o₂⎦   ⎣ 1/√6  −2/√6   1/√6⎦ ⎣B⎦      green against magenta
//! ```
//!
//! The matrix is orthogonal: white noise of deviation σ in R, G and B becomes white noise of
//! deviation σ in each plane, and noise removed from a plane is removed from the image. (YCbCr is
//! not orthogonal: the noise of its planes is correlated and of unequal deviation.) The matrix is
//! the cosine transform along the colour axis.
use candle::{DType, Result, Tensor};

const MATRIX: [[f64; 3]; 3] = {
    const A: f64 = 0.577_350_269_189_625_8;
    const B: f64 = std::f64::consts::FRAC_1_SQRT_2;
    const C: f64 = 0.408_248_290_463_863;
    [[A, A, A], [B, 0., -B], [C, -2. * C, C]]
};

/// Red, green and blue, `[3, height, width]`, to opponent planes of the same shape.
///
/// # Errors
/// When `rgb` has another shape.
pub fn to_opponent(rgb: &Tensor) -> Result<Tensor> {
    apply("to_opponent", rgb, |i, j| MATRIX[i][j])
}

/// Opponent planes back to red, green and blue.
///
/// # Errors
/// When `planes` is not `[3, height, width]`.
pub fn from_opponent(planes: &Tensor) -> Result<Tensor> {
    apply("from_opponent", planes, |i, j| MATRIX[j][i])
}

fn apply(op: &str, x: &Tensor, at: impl Fn(usize, usize) -> f64) -> Result<Tensor> {
    let [3, height, width] = *x.dims() else {
        candle::bail!("{op}: image must be [3, height, width], got {:?}", x.dims())
    };
    let matrix: Vec<f64> = (0..9).map(|k| at(k / 3, k % 3)).collect();
    let matrix = Tensor::from_vec(matrix, (3, 3), x.device())?.to_dtype(x.dtype())?;
    if !matches!(x.dtype(), DType::F32 | DType::F64) {
        candle::bail!("{op}: image must be F32 or F64, got {:?}", x.dtype())
    }
    matrix.matmul(&x.reshape((3, height * width))?.contiguous()?)?.reshape((3, height, width))
}
