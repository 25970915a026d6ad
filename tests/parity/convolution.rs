//! The convolution and its gradients equal plain loops on every device.
use candle::{DType, Device, Result, Tensor, Var};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::images::{
    ConvolutionShape, Padding, convolution, convolution_, convolution_gradient_places,
    convolution_input_gradient_, convolution_input_gradient_reference, convolution_reference,
    convolution_weight_gradient_, convolution_weight_gradient_reference,
};
use chandlery_ops::layers::Factors;
use chandlery_tests::{devices, sizes_here};

/// `(height, width, channels), n_filters, size`: one tile and several, rows that tiles cross,
/// bands; channels in steps of one pixel and of several, in one chunk and in more; filters below,
/// at and above 8 and 32; one, two and four warps beside each other; windows and maps that are
/// copied by ones and by fours; filters as large as the image; at the end filters and pixels so
/// large that a thread or a block makes each entry, and channels that warpgroups take in chunks.
const SHAPES: [((usize, usize, usize), usize, usize); 20] = [
    ((5, 4, 2), 3, 1),
    ((12, 13, 1), 32, 5),
    ((20, 18, 1), 9, 16),
    ((40, 37, 1), 33, 7),
    ((19, 14, 24), 20, 6),
    ((9, 11, 3), 5, 2),
    ((15, 12, 5), 12, 3),
    ((10, 9, 20), 40, 4),
    ((7, 300, 2), 6, 3),
    ((11, 10, 64), 8, 3),
    ((14, 150, 1), 10, 9),
    ((13, 17, 32), 16, 5),
    ((8, 9, 12), 65, 4),
    ((3, 270, 8), 4, 2),
    ((33, 35, 1), 8, 20),
    ((10, 12, 40), 24, 5),
    ((7, 9, 3), 2, 7),
    ((460, 461, 1), 2, 460),
    ((3, 4, 2000), 2, 3),
    ((6, 7, 600), 17, 3),
];

/// Shapes that a GPU of capability 9.0 takes by transforms of tiles of 16 and of 32 places, for three
/// images: odd numbers of channels and filters, tiles that reach beyond the images.
const BY_TRANSFORMS: [((usize, usize, usize), usize, usize); 3] =
    [((40, 37, 23), 33, 9), ((45, 44, 16), 16, 20), ((60, 50, 5), 40, 11)];

fn shapes() -> Result<Vec<ConvolutionShape>> {
    let of = |&(image, n_filters, size), padding| ConvolutionShape::new(image, n_filters, size, padding);
    let valid = SHAPES.iter().chain(&BY_TRANSFORMS).map(|shape| of(shape, Padding::Valid));
    let same = SHAPES[..16].iter().chain(&BY_TRANSFORMS).map(|shape| of(shape, Padding::Same));
    valid.chain(same).collect()
}

fn draw(rows: usize, cols: usize, stream: u64, dtype: DType) -> Result<Tensor> {
    normal((rows, cols), &Device::Cpu, Philox::new(41, stream))?.to_dtype(dtype)
}

/// `t` on a device, `offset` entries into its storage.
fn moved(t: &Tensor, device: &Device, offset: usize) -> Result<Tensor> {
    let n = t.elem_count();
    let all = Tensor::cat(&[Tensor::zeros(offset, t.dtype(), t.device())?, t.flatten_all()?], 0)?;
    all.to_device(device)?.narrow(0, offset, n)?.reshape(t.shape())
}

/// A tensor of NaN, to be overwritten.
fn unset(rows: usize, cols: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::full(f64::NAN, (rows, cols), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
}

/// How far rounding takes sums of products of order 1 from the exact ones: `terms` errors of up to 2⁻²² of a product (all parts of it
/// that tensor cores leave out) and of half a unit of the sum, which is about `√terms`. These add as random walks, `√terms` times as far;
/// eight times that is beyond the worst of a million entries, of few terms as well, where the largest product is some 16. For f64 the same
/// with its unit, and two roundings for each product.
fn tolerance(dtype: DType, terms: usize) -> f64 {
    let (of_product, unit) =
        if dtype == DType::F32 { (2f64.powi(-22), 2f64.powi(-24)) } else { (2f64.powi(-52), 2f64.powi(-53)) };
    let walk = (terms as f64).sqrt();
    8. * walk * (of_product + unit * walk)
}

fn assert_sums(what: &str, got: &Tensor, want: &Tensor, terms: usize) -> Result<()> {
    assert_eq!((got.dims(), got.dtype()), (want.dims(), want.dtype()), "{what}");
    let tolerance = tolerance(got.dtype(), terms);
    let values =
        |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    for (at, (got, want)) in values(got)?.iter().zip(values(want)?).enumerate() {
        let error = (got - want).abs();
        assert!(
            error <= tolerance || got.is_nan() && want.is_nan(),
            "{what}: entry {at} is {got}, wanted {want}: {:.2} times the tolerance {tolerance:e}",
            error / tolerance
        );
    }
    Ok(())
}

/// All three results on a device, of operands `offset` entries into their storages.
fn results(
    shape: ConvolutionShape,
    [x, h, w]: &[Tensor; 3],
    device: &Device,
    offset: usize,
) -> Result<[Tensor; 3]> {
    let (batch, dtype) = (x.dim(0)?, x.dtype());
    let of = |t: &Tensor| moved(t, device, offset);
    let (x, h, w) = (of(x)?, of(h)?, of(w)?);
    let maps = of(&unset(batch, shape.n_hidden(), dtype, &Device::Cpu)?)?;
    convolution_(&maps, &x, &w, shape)?;
    let images = of(&unset(batch, shape.n_visible(), dtype, &Device::Cpu)?)?;
    convolution_input_gradient_(&images, &h, &w, shape)?;
    let places = convolution_gradient_places(device, shape, batch, dtype)?;
    let parts = unset(places, shape.n_filters * shape.filter_len(), dtype, device)?;
    let gradient = unset(shape.n_filters, shape.filter_len(), dtype, device)?;
    convolution_weight_gradient_(&gradient, &parts, &x, &h, shape, Factors::OVERWRITE)?;
    Ok([maps, images, gradient])
}

fn operands(shape: ConvolutionShape, batch: usize, dtype: DType) -> Result<[Tensor; 3]> {
    Ok([
        draw(batch, shape.n_visible(), 0, dtype)?,
        draw(batch, shape.n_hidden(), 1, dtype)?,
        draw(shape.n_filters, shape.filter_len(), 2, dtype)?,
    ])
}

fn references(shape: ConvolutionShape, [x, h, w]: &[Tensor; 3]) -> Result<[Tensor; 3]> {
    Ok([
        convolution_reference(x, w, shape)?,
        convolution_input_gradient_reference(h, w, shape)?,
        convolution_weight_gradient_reference(x, h, shape)?,
    ])
}

/// Terms of the sums of each result.
fn terms(shape: ConvolutionShape, batch: usize) -> [usize; 3] {
    [shape.filter_len(), shape.size * shape.size * shape.n_filters, batch * shape.n_positions()]
}

const NAMES: [&str; 3] = ["maps", "images", "weights"];

#[test]
fn convolutions_equal_plain_loops() -> Result<()> {
    let devices = devices()?;
    // Of a batch; the plain loops are slow.
    let products = |shape: ConvolutionShape| 10 * shape.n_hidden() * shape.filter_len();
    for shape in sizes_here(&shapes()?, products) {
        // Odd offsets are for numbers copied one at a time.
        for (batch, dtype, offset) in [(3, DType::F32, 0), (1, DType::F32, 1), (2, DType::F64, 0)] {
            let from = operands(shape, batch, dtype)?;
            let want = references(shape, &from)?;
            for device in &devices {
                let got = results(shape, &from, device, offset)?;
                for (i, name) in NAMES.into_iter().enumerate() {
                    let what = format!(
                        "{name} of {shape:?}, batch {batch}, {dtype:?}, offset {offset}, on {:?}",
                        device.location()
                    );
                    assert_sums(&what, &got[i], &want[i], terms(shape, batch)[i])?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn products_are_as_exact_as_those_of_f32() -> Result<()> {
    // Sums of one term show what a product loses: at most 2⁻²³ for the last bits of each factor,
    // 2⁻²² for the product of low parts, 2⁻²³ where the cores cut off, and half a unit, 2⁻²⁴.
    const BOUND: f64 = (4. + 4. + 2. + 1.) / 16_777_216.;
    let shape = ConvolutionShape::new((64, 65, 1), 9, 1, Padding::Valid)?;
    let from = operands(shape, 2, DType::F32)?;
    // Factors of a large range: from 2⁻⁴⁰ to 2⁴⁰, which f16 has not.
    let scale = Tensor::arange(0u32, shape.n_visible() as u32, &Device::Cpu)?.to_dtype(DType::F32)?;
    let scale = ((scale * (80. / shape.n_visible() as f64))? - 40.)?;
    let scale = (scale.floor()? * std::f64::consts::LN_2)?.exp()?;
    let x = from[0].broadcast_mul(&scale)?;
    let want = convolution_reference(&x, &from[2], shape)?;
    for device in devices()? {
        let maps = convolution(&x.to_device(&device)?, &from[2].to_device(&device)?, shape)?;
        let values = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
        for (at, (got, want)) in values(&maps)?.iter().zip(values(&want)?).enumerate() {
            let error = (f64::from(*got) - f64::from(want)).abs() / f64::from(want).abs();
            assert!(
                error <= BOUND,
                "entry {at} is {got}, wanted {want}: {error:e} on {:?}",
                device.location()
            );
        }
    }
    Ok(())
}

#[test]
fn factors_scale_and_add_the_gradient_also_from_a_tensor() -> Result<()> {
    for device in devices()? {
        for (i, shape) in shapes()?.into_iter().enumerate().step_by(5) {
            for dtype in [DType::F32, DType::F64] {
                let batch = 2;
                let [x, h, old] = operands(shape, batch, dtype)?;
                let once = convolution_weight_gradient_reference(&x, &h, shape)?;
                let want = ((once * -0.5)? + (&old * 0.25)?)?;
                let (x, h) = (x.to_device(&device)?, h.to_device(&device)?);
                let places = convolution_gradient_places(&device, shape, batch, dtype)?;
                let parts = unset(places, shape.n_filters * shape.filter_len(), dtype, &device)?;
                let run = |factors: Factors<'_>| -> Result<Tensor> {
                    let gradient = old.copy()?.to_device(&device)?;
                    convolution_weight_gradient_(&gradient, &parts, &x, &h, shape, factors)?;
                    Ok(gradient)
                };
                let what = format!("shape {i}, {dtype:?} on {:?}", device.location());
                let got = run(Factors::Host { alpha: -0.5, beta: 0.25 })?;
                assert_sums(&what, &got, &want, terms(shape, batch)[2])?;
                if dtype == DType::F32 {
                    let factors = Tensor::new(&[-0.5f32, 0.25], &device)?;
                    let again = run(Factors::Tensor(&factors))?;
                    chandlery_tests::assert_same_bits(&what, &again, &got)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn many_images_have_the_results_of_fewer() -> Result<()> {
    // More than the transforms of a GPU are made of at a time.
    const BATCH: usize = 120;
    let shape = ConvolutionShape::new((56, 56, 24), 32, 10, Padding::Valid)?;
    for device in devices()?.iter().filter(|device| !device.is_cpu()) {
        let of = |t: Tensor| t.to_device(device);
        let [x, h, w] = operands(shape, BATCH, DType::F32)?;
        let (x, h, w) = (of(x)?, of(h)?, of(w)?);
        let all = results(shape, &[x.clone(), h.clone(), w.clone()], device, 0)?;
        let (mut maps, mut images, mut weights) = (vec![], vec![], all[2].zeros_like()?);
        for start in (0..BATCH).step_by(8) {
            let some = [x.narrow(0, start, 8)?, h.narrow(0, start, 8)?, w.clone()];
            let [of_maps, of_images, of_weights] = results(shape, &some, device, 0)?;
            maps.push(of_maps);
            images.push(of_images);
            weights = (weights + of_weights)?;
        }
        let parts = [Tensor::cat(&maps, 0)?, Tensor::cat(&images, 0)?, weights];
        for (i, name) in NAMES.into_iter().enumerate() {
            assert_sums(name, &all[i], &parts[i], terms(shape, BATCH)[i])?;
        }
    }
    Ok(())
}

#[test]
fn the_same_operands_give_the_same_bits() -> Result<()> {
    for device in devices()? {
        for shape in shapes()? {
            let from = operands(shape, 3, DType::F32)?;
            let (one, two) = (results(shape, &from, &device, 0)?, results(shape, &from, &device, 0)?);
            for (i, name) in NAMES.into_iter().enumerate() {
                let what = format!("{name} of {shape:?} on {:?}", device.location());
                chandlery_tests::assert_same_bits(&what, &one[i], &two[i])?;
            }
        }
    }
    Ok(())
}

/// The places of a result that lie less than a tile from place `at` of another of the same image, of
/// `[height, width]` places each: where a NaN may reach by transforms.
fn near(at: usize, other_width: usize, [height, width]: [usize; 2]) -> impl Fn(usize) -> bool {
    const TILE: usize = 32;
    let (row, column) = (at / other_width, at % other_width);
    move |place| {
        let (y, x) = (place / width, place % width);
        y < height && y.abs_diff(row) < TILE && x.abs_diff(column) < TILE
    }
}

#[test]
fn a_nan_reaches_the_sums_it_is_in_and_none_beyond_its_tiles() -> Result<()> {
    const BATCH: usize = 2;
    // Wider than tiles, so that some results are out of reach.
    let wide = [((20, 150, 24), 33, 9), ((24, 190, 16), 16, 20)];
    let wide = wide.map(|(image, n, size)| ConvolutionShape::new(image, n, size, Padding::Valid));
    let wide = wide.into_iter().collect::<Result<Vec<_>>>()?;
    for device in devices()? {
        // Zeros around an image are factors, and NaN times 0 is NaN.
        let valid = shapes()?.into_iter().filter(|shape| shape.padding == Padding::Valid);
        for shape in valid.chain(wide.iter().copied()) {
            let [x, h, w] = operands(shape, BATCH, DType::F32)?;
            let with_nan = |t: &Tensor, at: usize| {
                let mut values = t.flatten_all()?.to_vec1::<f32>()?;
                values[at] = f32::NAN;
                Tensor::from_vec(values, t.shape(), &Device::Cpu)
            };
            let (in_x, in_h) = (shape.n_visible() / 2, shape.n_hidden() / 3);
            let from = [with_nan(&x, in_x)?, with_nan(&h, in_h)?, w];
            let (want, got) = (references(shape, &from)?, results(shape, &from, &device, 0)?);
            let (sides, out_sides) = ([shape.height, shape.width], [shape.out_height(), shape.out_width()]);
            let reaches_maps = near(in_x / shape.channels, shape.width, out_sides);
            let reaches_images = near(in_h / shape.n_filters, shape.out_width(), sides);
            for (i, name) in NAMES.into_iter().enumerate() {
                let what = format!("{name} of {shape:?} on {:?}", device.location());
                let may = |at: usize| match i {
                    0 => reaches_maps(at / shape.n_filters),
                    1 => reaches_images(at / shape.channels),
                    _ => true,
                };
                let values = |t: &Tensor| t.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>();
                let pairs = values(&got[i])?.into_iter().zip(values(&want[i])?).enumerate();
                // What a NaN reached that it may reach counts as wanted.
                let seen: Vec<f32> = pairs
                    .map(|(at, (got, want))| if got.is_nan() && may(at) { f32::NAN } else { want })
                    .collect();
                let seen = Tensor::from_vec(seen, want[i].shape(), &Device::Cpu)?;
                assert_sums(&what, &got[i], &seen, terms(shape, BATCH)[i])?;
            }
        }
    }
    Ok(())
}

#[test]
fn the_differentiable_form_has_the_gradients_of_the_ops() -> Result<()> {
    for device in devices()? {
        for shape in shapes()?.into_iter().step_by(4) {
            let [x, h, w] = operands(shape, 2, DType::F32)?;
            let of = |t: &Tensor| Var::from_tensor(&t.to_device(&device)?);
            let (of_x, of_w) = (of(&x)?, of(&w)?);
            let maps = convolution(&of_x, &of_w, shape)?;
            let grads = (&maps * h.to_device(&device)?)?.sum_all()?.backward()?;
            let want = references(shape, &[x, h, w])?;
            let got = [Some(&maps), grads.get(&of_x), grads.get(&of_w)];
            for (i, name) in NAMES.into_iter().enumerate() {
                let Some(got) = got[i] else { candle::bail!("{name} of {shape:?} have no gradient") };
                let what = format!("{name} of {shape:?} on {:?}", device.location());
                assert_sums(&what, got, &want[i], terms(shape, 2)[i])?;
            }
        }
    }
    Ok(())
}
