//! The convolution and its gradients equal plain loops, are each other's adjoints, and name what is
//! wrong.
#![allow(clippy::expect_used, clippy::unwrap_used)]
use candle::{DType, Device::Cpu, Result, Tensor, Var};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::images::{
    ConvolutionShape, Padding, convolution, convolution_, convolution_gradient_places,
    convolution_input_gradient_, convolution_input_gradient_reference, convolution_reference,
    convolution_transposed, convolution_weight_gradient_, convolution_weight_gradient_reference,
};
use chandlery_ops::layers::Factors;

/// `(height, width, channels), n_filters, size`, all sizes of one shape different: filters of one
/// pixel, as large as the image, larger than half of it, odd and even; more positions than a tile,
/// and images with fewer rows than there are tasks. The last fill vectors of filters, or of
/// channels, with lines of maps and filters of less and more than a block.
const SHAPES: [((usize, usize, usize), usize, usize); 14] = [
    ((5, 4, 2), 3, 1),
    ((7, 9, 1), 5, 2),
    ((6, 8, 3), 4, 5),
    ((7, 11, 2), 3, 7),
    ((31, 23, 1), 8, 6),
    ((12, 17, 5), 33, 3),
    ((40, 37, 1), 9, 16),
    ((19, 13, 24), 6, 10),
    ((12, 17, 5), 32, 3),
    ((9, 6, 16), 16, 4),
    ((8, 7, 14), 45, 3),
    ((6, 20, 31), 15, 2),
    ((14, 13, 1), 48, 9),
    ((30, 31, 1), 30, 5),
];

fn shapes() -> Vec<ConvolutionShape> {
    let of = |padding| {
        SHAPES.map(|(image, n_filters, size)| ConvolutionShape::new(image, n_filters, size, padding).unwrap())
    };
    let strides = of(Padding::Valid).into_iter().enumerate();
    let with_strides = strides.map(|(i, shape)| ConvolutionShape { stride: 2 + i % 3, ..shape });
    [of(Padding::Valid).to_vec(), of(Padding::Same).to_vec(), with_strides.collect()].concat()
}

fn draw(rows: usize, cols: usize, stream: u64, dtype: DType) -> Result<Tensor> {
    normal((rows, cols), &Cpu, Philox::new(40, stream))?.to_dtype(dtype)
}

/// Images, maps and weights.
fn operands(shape: ConvolutionShape, batch: usize, dtype: DType) -> Result<[Tensor; 3]> {
    Ok([
        draw(batch, shape.n_visible(), 0, dtype)?,
        draw(batch, shape.n_hidden(), 1, dtype)?,
        draw(shape.n_filters, shape.filter_len(), 2, dtype)?,
    ])
}

fn maps_of(x: &Tensor, w: &Tensor, shape: ConvolutionShape) -> Result<Tensor> {
    let maps = Tensor::full(f64::NAN, (x.dim(0)?, shape.n_hidden()), &Cpu)?.to_dtype(x.dtype())?;
    convolution_(&maps, x, w, shape)?;
    Ok(maps)
}

fn images_of(hidden: &Tensor, w: &Tensor, shape: ConvolutionShape) -> Result<Tensor> {
    let images = Tensor::full(f64::NAN, (hidden.dim(0)?, shape.n_visible()), &Cpu)?.to_dtype(w.dtype())?;
    convolution_input_gradient_(&images, hidden, w, shape)?;
    Ok(images)
}

fn parts_for(shape: ConvolutionShape, batch: usize, dtype: DType) -> Result<Tensor> {
    let places = convolution_gradient_places(&Cpu, shape, batch, dtype)?;
    Tensor::full(f64::NAN, (places, shape.n_filters * shape.filter_len()), &Cpu)?.to_dtype(dtype)
}

fn gradient_of(x: &Tensor, hidden: &Tensor, shape: ConvolutionShape) -> Result<Tensor> {
    let (batch, dtype) = (x.dim(0)?, x.dtype());
    let gradient = Tensor::full(f64::NAN, (shape.n_filters, shape.filter_len()), &Cpu)?.to_dtype(dtype)?;
    convolution_weight_gradient_(
        &gradient,
        &parts_for(shape, batch, dtype)?,
        x,
        hidden,
        shape,
        Factors::OVERWRITE,
    )?;
    Ok(gradient)
}

/// Fails with the worst entry unless all are within what rounding explains: sums of `terms`
/// products of order 1, whose errors add as a random walk of steps of half a unit of sums of
/// `√terms`, with room for the worst of many entries.
fn assert_sums(what: &str, got: &Tensor, want: &Tensor, terms: usize) -> Result<()> {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let unit = if got.dtype() == DType::F32 { 2f64.powi(-24) } else { 2f64.powi(-53) };
    let tolerance = 6. * unit * (terms as f64 + 1.);
    let values = |t: &Tensor| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    for (at, (got, want)) in values(got)?.iter().zip(values(want)?).enumerate() {
        let error = (got - want).abs();
        assert!(
            error <= tolerance,
            "{what}: entry {at} is {got}, wanted {want}: {:.2} times the tolerance {tolerance:e}",
            error / tolerance
        );
    }
    Ok(())
}

#[test]
fn all_three_equal_plain_loops() -> Result<()> {
    for shape in shapes() {
        for (batch, dtype) in [(1, DType::F32), (3, DType::F64), (2, DType::F32)] {
            let [x, h, w] = operands(shape, batch, dtype)?;
            let what = |of: &str| format!("{of} of {shape:?}, batch {batch}, {dtype:?}");
            let want = convolution_reference(&x, &w, shape)?;
            assert_sums(&what("maps"), &maps_of(&x, &w, shape)?, &want, shape.filter_len())?;
            let want = convolution_input_gradient_reference(&h, &w, shape)?;
            let terms = shape.size * shape.size * shape.n_filters;
            assert_sums(&what("images"), &images_of(&h, &w, shape)?, &want, terms)?;
            let want = convolution_weight_gradient_reference(&x, &h, shape)?;
            let terms = batch * shape.n_positions();
            assert_sums(&what("weights"), &gradient_of(&x, &h, shape)?, &want, terms)?;
        }
    }
    Ok(())
}

#[test]
fn the_reference_is_candles_conv2d() -> Result<()> {
    for shape in shapes().into_iter().filter(|shape| shape.padding == Padding::Valid || shape.size % 2 == 1) {
        let ConvolutionShape { height, width, channels, n_filters, size, .. } = shape;
        let [x, _, w] = operands(shape, 2, DType::F64)?;
        let first = |t: &Tensor, rows, cols| t.reshape(((), rows, cols, channels))?.permute((0, 3, 1, 2));
        let pad = if shape.padding == Padding::Same { (size - 1) / 2 } else { 0 };
        let maps = first(&x, height, width)?.contiguous()?.conv2d(
            &first(&w, size, size)?.contiguous()?,
            pad,
            shape.stride,
            1,
            1,
        )?;
        let maps = maps.permute((0, 2, 3, 1))?.reshape((2, shape.n_hidden()))?;
        assert_eq!(maps.elem_count() / 2, shape.n_positions() * n_filters);
        assert_sums(
            &format!("{shape:?}"),
            &convolution_reference(&x, &w, shape)?,
            &maps,
            shape.filter_len(),
        )?;
    }
    Ok(())
}

#[test]
fn an_even_filter_has_its_extra_line_of_zeros_below_and_on_the_right() -> Result<()> {
    // A filter of size 2 or 4 that picks the pixel `(size − 1)/2` lines after its first gives back
    // the image.
    for size in [2, 3, 4, 5] {
        let shape = ConvolutionShape::new((6, 7, 1), 1, size, Padding::Same)?;
        let mut w = vec![0f32; size * size];
        w[(size - 1) / 2 * (size + 1)] = 1.;
        let x = draw(2, shape.n_visible(), 3, DType::F32)?;
        let maps = maps_of(&x, &Tensor::from_vec(w, (1, size * size), &Cpu)?, shape)?;
        assert_eq!(maps.to_vec2::<f32>()?, x.to_vec2::<f32>()?, "size {size}");
    }
    Ok(())
}

#[test]
fn the_gradients_are_adjoints_of_the_convolution() -> Result<()> {
    for shape in shapes() {
        let [x, h, w] = operands(shape, 3, DType::F64)?;
        let inner = |a: &Tensor, b: &Tensor| (a * b)?.sum_all()?.to_scalar::<f64>();
        let of_maps = inner(&maps_of(&x, &w, shape)?, &h)?;
        let of_images = inner(&x, &images_of(&h, &w, shape)?)?;
        let of_weights = inner(&w, &gradient_of(&x, &h, shape)?)?;
        // Sums of as many products of order 1, each rounded to 2⁻⁵³.
        let terms = (3 * shape.n_hidden() * shape.filter_len()) as f64;
        let worst = (of_maps - of_images).abs().max((of_maps - of_weights).abs());
        assert!(worst <= 1e-14 * terms, "{shape:?}: {of_maps}, {of_images}, {of_weights}");
    }
    Ok(())
}

#[test]
fn gradients_of_the_differentiable_form_are_finite_differences() -> Result<()> {
    const STEP: f64 = 1e-6;
    type Op = fn(&Tensor, &Tensor, ConvolutionShape) -> Result<Tensor>;
    let ops: [(&str, Op); 2] = [("convolution", convolution), ("transposed", convolution_transposed)];
    for ((op, function), padding) in
        ops.into_iter().flat_map(|op| [(op, Padding::Valid), (op, Padding::Same)])
    {
        let shape = ConvolutionShape::new((4, 5, 2), 3, 2, padding)?;
        let [x, h, w] = operands(shape, 2, DType::F64)?;
        let (x, factors) = if op == "transposed" { (h, x) } else { (x, h) };
        // A loss that is not linear in the result.
        let loss = |x: &Tensor, w: &Tensor| (function(x, w, shape)? * &factors)?.sin()?.sum_all();
        let (x, w) = (Var::from_tensor(&x)?, Var::from_tensor(&w)?);
        let grads = loss(&x, &w)?.backward()?;
        for (name, var) in [("x", &x), ("w", &w)] {
            let grad = grads.get(var).expect("a gradient").flatten_all()?.to_vec1::<f64>()?;
            let values = var.flatten_all()?.to_vec1::<f64>()?;
            for i in 0..values.len() {
                let moved = |by: f64| -> Result<f64> {
                    let mut values = values.clone();
                    values[i] += by;
                    let moved = Tensor::from_vec(values, var.shape(), &Cpu)?;
                    let loss = if name == "x" { loss(&moved, &w)? } else { loss(&x, &moved)? };
                    loss.to_scalar::<f64>()
                };
                let slope = (moved(STEP)? - moved(-STEP)?) / (2. * STEP);
                // The third derivative times STEP², and rounding of a loss of order 10 over STEP.
                assert!(
                    (slope - grad[i]).abs() < 1e-7,
                    "{op} {padding:?} {name}[{i}]: {slope} and {}",
                    grad[i]
                );
            }
        }
    }
    Ok(())
}

#[test]
fn data_get_no_gradient() -> Result<()> {
    let shape = ConvolutionShape::new((6, 5, 1), 2, 3, Padding::Valid)?;
    let [x, _, w] = operands(shape, 2, DType::F32)?;
    let w = Var::from_tensor(&w)?;
    let grads = convolution(&x, &w, shape)?.sum_all()?.backward()?;
    assert!(grads.get(&x).is_none() && grads.get(&w).is_some());
    let hidden = draw(2, shape.n_hidden(), 3, DType::F32)?;
    let images = convolution_transposed(&hidden, &w, shape)?;
    let want = convolution_input_gradient_reference(&hidden, &w, shape)?;
    assert_sums("images", &images.detach(), &want, shape.n_filters * 9)?;
    let grads = images.sum_all()?.backward()?;
    assert!(grads.get(&hidden).is_none() && grads.get(&w).is_some());
    Ok(())
}

#[test]
fn a_gradient_is_added_with_factors_and_overwrites_nan_without() -> Result<()> {
    let shape = ConvolutionShape::new((9, 8, 2), 3, 4, Padding::Same)?;
    for dtype in [DType::F32, DType::F64] {
        let [x, h, old] = operands(shape, 2, dtype)?;
        let once = convolution_weight_gradient_reference(&x, &h, shape)?;
        let parts = parts_for(shape, 2, dtype)?;
        let want = ((&once * -0.5)? + (&old * 0.25)?)?;
        let gradient = old.copy()?;
        let host = Factors::Host { alpha: -0.5, beta: 0.25 };
        convolution_weight_gradient_(&gradient, &parts, &x, &h, shape, host)?;
        assert_sums("added", &gradient, &want, 2 * shape.n_positions())?;
        if dtype == DType::F32 {
            let (again, factors) = (old.copy()?, Tensor::new(&[-0.5f32, 0.25, 7.], &Cpu)?);
            convolution_weight_gradient_(&again, &parts, &x, &h, shape, Factors::Tensor(&factors))?;
            assert_eq!(again.to_vec2::<f32>()?, gradient.to_vec2::<f32>()?);
        }
        assert_sums("overwritten", &gradient_of(&x, &h, shape)?, &once, 2 * shape.n_positions())?;
    }
    Ok(())
}

#[test]
fn the_bits_are_the_same_on_any_number_of_threads() -> Result<()> {
    for shape in shapes() {
        for batch in [1, 5] {
            let [x, h, w] = operands(shape, batch, DType::F32)?;
            let run = |threads: usize| -> Result<Vec<u32>> {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
                let all = pool.install(|| {
                    Ok::<_, candle::Error>([
                        maps_of(&x, &w, shape)?,
                        images_of(&h, &w, shape)?,
                        gradient_of(&x, &h, shape)?,
                    ])
                })?;
                let mut bits = vec![];
                for t in all {
                    bits.extend(t.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits));
                }
                Ok(bits)
            };
            let one = run(1)?;
            for threads in [2, 3] {
                assert!(run(threads)? == one, "{shape:?}, batch {batch}, {threads} threads");
            }
        }
    }
    Ok(())
}

#[test]
fn a_nan_stays_within_reach_of_its_filter() -> Result<()> {
    let shape = ConvolutionShape::new((6, 7, 1), 2, 3, Padding::Valid)?;
    let [x, h, w] = operands(shape, 2, DType::F32)?;
    let mut values = x.to_vec2::<f32>()?;
    values[1][0] = f32::NAN;
    let maps = maps_of(&Tensor::new(values, &Cpu)?, &w, shape)?.to_vec2::<f32>()?;
    assert!(maps[0].iter().all(|y| !y.is_nan()) && maps[1][..2].iter().all(|y| y.is_nan()));
    assert!(maps[1][2..].iter().all(|y| !y.is_nan()), "only one window begins at the corner");
    let mut values = h.to_vec2::<f32>()?;
    values[0][1] = f32::NAN;
    let images = images_of(&Tensor::new(values, &Cpu)?, &w, shape)?.to_vec2::<f32>()?;
    assert!(images[1].iter().all(|v| !v.is_nan()));
    for (i, v) in images[0].iter().enumerate() {
        assert_eq!(v.is_nan(), i / 7 < 3 && i % 7 < 3, "pixel {i}");
    }
    Ok(())
}

#[test]
fn an_empty_batch_gives_nothing_and_keeps_beta_times_the_gradient() -> Result<()> {
    let shape = ConvolutionShape::new((5, 6, 1), 2, 3, Padding::Valid)?;
    let [x, h, w] = operands(shape, 0, DType::F32)?;
    assert_eq!(maps_of(&x, &w, shape)?.dims(), [0, shape.n_hidden()]);
    assert_eq!(images_of(&h, &w, shape)?.dims(), [0, shape.n_visible()]);
    assert_eq!(convolution(&x, &w, shape)?.dims(), [0, shape.n_hidden()]);
    let gradient = w.copy()?;
    let parts = parts_for(shape, 0, DType::F32)?;
    let factors = Factors::Host { alpha: 1., beta: 2. };
    convolution_weight_gradient_(&gradient, &parts, &x, &h, shape, factors)?;
    assert_eq!(gradient.to_vec2::<f32>()?, (w * 2.)?.to_vec2::<f32>()?);
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let first = |result: Result<()>| {
        result.expect_err("accepted").to_string().lines().next().unwrap_or_default().to_owned()
    };
    let of = |image, n, size, padding| ConvolutionShape::new(image, n, size, padding).map(|_| ());
    let shape = ConvolutionShape::new((5, 6, 2), 3, 2, Padding::Valid)?;
    let [x, h, w] = operands(shape, 2, DType::F32)?;
    let (maps, images, gradient) = (h.copy()?, x.copy()?, w.copy()?);
    let (parts, factors) = (parts_for(shape, 2, DType::F32)?, Factors::OVERWRITE);
    let short = Tensor::zeros((2, 7), DType::F32, &Cpu)?;
    let cases = [
        (of((5, 0, 1), 1, 2, Padding::Same), "convolution: width must be at least 1, got 0"),
        (of((5, 6, 1), 0, 2, Padding::Same), "convolution: n_filters must be at least 1, got 0"),
        (
            of((5, 6, 1), 1, 6, Padding::Valid),
            "convolution: size must be at most 5, the lesser side of an image without padding, got 6",
        ),
        (convolution_(&maps, &short, &w, shape), "convolution_: x must have shape [2, 60], got [2, 7]"),
        (convolution_(&short, &x, &w, shape), "convolution_: maps must have shape [2, 60], got [2, 7]"),
        (
            convolution_(&maps, &x.to_dtype(DType::U8)?, &w, shape),
            "convolution_: x must be f32 or f64, got U8",
        ),
        (convolution_(&maps, &x, &w.to_dtype(DType::F64)?, shape), "convolution_: w must be f32, got F64"),
        (
            convolution_(&maps, &x.flatten_all()?, &w, shape),
            "convolution_: x must be a matrix of one row for each image, got shape [120]",
        ),
        (
            convolution_input_gradient_(&images, &h, &short, shape),
            "convolution_input_gradient_: w must have shape [3, 8], got [2, 7]",
        ),
        (
            convolution_weight_gradient_(&gradient, &short, &x, &h, shape, factors),
            "convolution_weight_gradient_: parts must be [2 or more, 24], got shape [2, 7]",
        ),
        (
            convolution_weight_gradient_(&short, &parts, &x, &h, shape, factors),
            "convolution_weight_gradient_: gradient must have shape [3, 8], got [2, 7]",
        ),
        (
            convolution_input_gradient_(&images, &images.narrow(1, 0, 60)?, &w, shape),
            "convolution_input_gradient_: hidden must not share the storage of images, which is written",
        ),
    ];
    for (result, want) in cases {
        let got = first(result);
        assert!(got.starts_with(want), "{got}\nwanted {want}");
    }
    Ok(())
}
