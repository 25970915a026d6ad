//! The ops in plain loops, summed in f64.
use super::ConvolutionShape;
use candle::{DType, Result, Tensor};

/// The rows of a tensor, `[batch, _]`, in f64.
fn rows(t: &Tensor) -> Result<Vec<Vec<f64>>> {
    t.to_dtype(DType::F64)?.to_vec2()
}

/// A tensor of such rows, of the type and on the device of another.
fn tensor(rows: Vec<Vec<f64>>, like: &Tensor) -> Result<Tensor> {
    let shape = (rows.len(), rows.first().map_or(0, Vec::len));
    Tensor::from_vec(rows.concat(), shape, like.device())?.to_dtype(like.dtype())
}

/// Calls `f(entry of the image, entry of the maps, entry of the weights)` for each term of the
/// sums.
fn each_term(shape: ConvolutionShape, mut f: impl FnMut(usize, usize, usize)) {
    let ConvolutionShape { height, width, channels, n_filters, size, stride, .. } = shape;
    for oy in 0..shape.out_height() {
        for ox in 0..shape.out_width() {
            for o in 0..n_filters {
                let y = (oy * shape.out_width() + ox) * n_filters + o;
                for dy in 0..size {
                    for dx in 0..size {
                        // A place before the image wraps to a large number.
                        let row = (oy * stride + dy).wrapping_sub(shape.pad());
                        let column = (ox * stride + dx).wrapping_sub(shape.pad());
                        if row >= height || column >= width {
                            continue;
                        }
                        for c in 0..channels {
                            let x = (row * width + column) * channels + c;
                            f(x, y, ((o * size + dy) * size + dx) * channels + c);
                        }
                    }
                }
            }
        }
    }
}

/// The maps of images `x` in plain loops; arguments are those of
/// [`convolution`](super::convolution). Returns a new tensor.
///
/// # Errors
/// When candle cannot read the tensors.
pub fn convolution_reference(x: &Tensor, w: &Tensor, shape: ConvolutionShape) -> Result<Tensor> {
    let weights = rows(w)?.concat();
    let maps = rows(x)?.into_iter().map(|image| {
        let mut maps = vec![0.; shape.n_hidden()];
        each_term(shape, |x, y, w| maps[y] += image[x] * weights[w]);
        maps
    });
    tensor(maps.collect(), x)
}

/// The gradient to the images in plain loops; arguments are those of
/// [`convolution_input_gradient_`](super::convolution_input_gradient_). Returns a new tensor.
///
/// # Errors
/// When candle cannot read the tensors.
pub fn convolution_input_gradient_reference(
    hidden: &Tensor,
    w: &Tensor,
    shape: ConvolutionShape,
) -> Result<Tensor> {
    let weights = rows(w)?.concat();
    let images = rows(hidden)?.into_iter().map(|maps| {
        let mut image = vec![0.; shape.n_visible()];
        each_term(shape, |x, y, w| image[x] += maps[y] * weights[w]);
        image
    });
    tensor(images.collect(), hidden)
}

/// The gradient to the weights, `[n_filters, size² · channels]`, in plain loops, without factors;
/// arguments are those of [`convolution_weight_gradient_`](super::convolution_weight_gradient_).
/// Returns a new tensor.
///
/// # Errors
/// When candle cannot read the tensors.
pub fn convolution_weight_gradient_reference(
    x: &Tensor,
    hidden: &Tensor,
    shape: ConvolutionShape,
) -> Result<Tensor> {
    let mut gradient = vec![0.; shape.n_filters * shape.filter_len()];
    for (image, maps) in rows(x)?.iter().zip(&rows(hidden)?) {
        each_term(shape, |x, y, w| gradient[w] += image[x] * maps[y]);
    }
    tensor(gradient.chunks(shape.filter_len()).map(<[f64]>::to_vec).collect(), x)
}
