use super::*;
use crate::Philox;
use crate::core::normal;
use crate::images::{
    Padding, convolution_input_gradient_reference, convolution_reference,
    convolution_weight_gradient_reference,
};
use candle::{Device::Cpu, Result, Tensor};

/// Height, width and channels.
type Image = (usize, usize, usize);

/// `image, n_filters, size, batch`: one tile and several, which do not divide
/// the image; channels and filters of less and more than a vector, that fill some and do not; more
/// squares and terms than a group; filters as large as half a tile of 16 and as one.
const SHAPES: [(Image, usize, usize, usize); 8] = [
    ((20, 23, 3), 5, 4, 2),
    ((31, 14, 24), 33, 3, 1),
    ((40, 37, 1), 9, 16, 3),
    ((19, 13, 37), 6, 10, 1),
    ((17, 16, 7), 18, 16, 2),
    ((64, 50, 2), 16, 8, 5),
    ((9, 11, 40), 3, 2, 1),
    ((70, 69, 1), 8, 5, 1),
];

struct Operands {
    shape: ConvolutionShape,
    x: Tensor,
    hidden: Tensor,
    w: Tensor,
}

fn operands() -> Result<Vec<Operands>> {
    let mut all = vec![];
    for (image, n_filters, size, batch) in SHAPES {
        for padding in [Padding::Valid, Padding::Same] {
            let shape = ConvolutionShape::new(image, n_filters, size, padding)?;
            let draw = |rows, columns, stream| normal((rows, columns), &Cpu, Philox::new(7, stream));
            let x = draw(batch, shape.n_visible(), 0)?;
            let (hidden, w) = (draw(batch, shape.n_hidden(), 1)?, draw(n_filters, shape.filter_len(), 2)?);
            all.push(Operands { shape, x, hidden, w });
        }
    }
    Ok(all)
}

fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.flatten_all()?.to_vec1()
}

/// Rounding adds as a random walk in the transforms, over all products of a tile: units of
/// `√(log₂ T² · terms)`. Terms of a sum may be few in a corner of a tile that has many.
fn assert_close(what: &str, got: &[f32], want: &Tensor, terms: usize) -> Result<()> {
    let tolerance = 12. * f32::EPSILON / 2. * (10. * terms as f32).sqrt();
    for (at, (got, want)) in got.iter().zip(values(want)?).enumerate() {
        let share = (got - want).abs() / tolerance;
        assert!(share <= 1., "{what}: entry {at} is {got}, wanted {want}: {share:.2} times {tolerance:e}");
    }
    Ok(())
}

fn all_three<const L: usize, const T: usize>() -> Result<()> {
    for Operands { shape, x, hidden, w } in operands()? {
        let what = |of: &str| format!("{of} of {shape:?}, {L} lanes, side {T}");
        let (Some(of_maps), Some(of_images)) = (Tiles::of_maps(shape, T), Tiles::of_images(shape, T)) else {
            candle::bail!("{shape:?} has no tiles of {T}")
        };
        let (x_values, hidden_values, w_values) = (values(&x)?, values(&hidden)?, values(&w)?);
        let mut maps = vec![f32::NAN; hidden.elem_count()];
        forward_by::<L, T>(shape, of_maps, &mut maps, &x_values, &w_values);
        let terms = shape.filter_len();
        assert_close(&what("maps"), &maps, &convolution_reference(&x, &w, shape)?, terms)?;
        let mut images = vec![f32::NAN; x.elem_count()];
        input_gradient_by::<L, T>(shape, of_images, &mut images, &hidden_values, &w_values);
        let terms = shape.size * shape.size * shape.n_filters;
        let want = convolution_input_gradient_reference(&hidden, &w, shape)?;
        assert_close(&what("images"), &images, &want, terms)?;
        let mut gradient = vec![f32::NAN; w.elem_count()];
        weights_by::<L, T>(shape, of_maps, &mut gradient, &x_values, &hidden_values);
        // Places of a tile that are no terms of a sum round too.
        let terms = x.dim(0)? * of_maps.count() * T * T;
        let want = convolution_weight_gradient_reference(&x, &hidden, shape)?;
        assert_close(&what("weights"), &gradient, &want, terms)?;
    }
    Ok(())
}

#[test]
fn tiles_of_16_equal_plain_loops() -> Result<()> {
    all_three::<8, 16>()?;
    all_three::<16, 16>()
}

#[test]
fn tiles_of_32_equal_plain_loops() -> Result<()> {
    all_three::<8, 32>()?;
    all_three::<16, 32>()
}
