//! The cost of a small sparse autoencoder in one op against candle's own ops in f64.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::layers::{Activation, SparseCost, sparse_cost_, sparse_cost_fits, sparse_cost_reference};
use chandlery_tests::devices;

const CPU: Device = Device::Cpu;
/// Visible units, features, rows: sides of the 4 x 4 entries of a thread, warps, tiles and blocks,
/// whole and not; the last have several tiles to a block on every GPU.
const SHAPES: [[usize; 3]; 13] = [
    [1, 1, 1],
    [1, 2, 3],
    [5, 3, 131],
    [4, 4, 132],
    [17, 33, 133],
    [31, 9, 600],
    [64, 25, 10_000],
    [64, 32, 1000],
    [128, 64, 2001],
    [7, 300, 500],
    [300, 5, 501],
    [64, 25, 40_001],
    [9, 130, 70_003],
];
/// Relative to the norm of the gradient, and to each figure: f32 products of up to 300 terms, whose
/// sums over rows are added in f64 from block to block.
const TOLERANCE: f64 = 3e-6;

fn cost([n_visible, n_hidden, _]: [usize; 3], decoder: Activation) -> SparseCost {
    SparseCost {
        n_visible,
        n_hidden,
        decoder,
        weight_decay: 0.01,
        sparsity_weight: 3.,
        sparsity_target: 0.05,
    }
}

fn operands([v, h, m]: [usize; 3]) -> Result<(Tensor, Tensor)> {
    let theta = (normal(2 * v * h + v + h, &CPU, Philox::new(30, 0))? * 0.3)?;
    Ok((theta, uniform((m, v), &CPU, Philox::new(30, 1))?.affine(0.8, 0.1)?))
}

fn run(theta: &Tensor, rows: &Tensor, cost: SparseCost, device: &Device) -> Result<(Tensor, Tensor)> {
    let (theta, rows) = (theta.to_device(device)?, rows.to_device(device)?);
    let figures = Tensor::zeros(4, DType::F64, device)?;
    // What the op overwrites.
    let gradient = Tensor::full(f32::NAN, theta.dims(), device)?;
    sparse_cost_(&figures, &gradient, &theta, &rows, cost)?;
    Ok((figures.to_device(&CPU)?, gradient.to_device(&CPU)?))
}

#[test]
fn the_cost_and_its_gradient_are_those_of_the_reference() -> Result<()> {
    for device in devices()? {
        let mut fitted = 0;
        for shape @ [v, h, m] in SHAPES {
            if !device.is_cpu() && !sparse_cost_fits(&device, v, h)? {
                continue;
            }
            fitted += 1;
            let (theta, rows) = operands(shape)?;
            for decoder in [Activation::Sigmoid, Activation::Identity] {
                let of = cost(shape, decoder);
                let (want, want_gradient) = sparse_cost_reference(&theta, &rows, of)?;
                let (got, gradient) = run(&theta, &rows, of, &device)?;
                let what = format!("{v}-{h}-{v}, {m} rows, {decoder:?} on {:?}", device.location());
                for (i, (got, want)) in got.to_vec1::<f64>()?.iter().zip(want.to_vec1::<f64>()?).enumerate() {
                    let apart = (got - want).abs() / want.abs();
                    assert!(apart <= TOLERANCE, "{what}: figure {i} is {got}, want {want}: {apart}");
                }
                let norm = |t: Tensor| t.sqr()?.sum_all()?.to_scalar::<f64>().map(f64::sqrt);
                let apart = norm((gradient.to_dtype(DType::F64)? - &want_gradient)?)? / norm(want_gradient)?;
                assert!(apart <= TOLERANCE, "{what}: the gradient is {apart} from the reference");
                // The same bits again.
                let (again, gradient_again) = run(&theta, &rows, of, &device)?;
                assert_eq!(again.to_vec1::<f64>()?, got.to_vec1::<f64>()?, "{what}");
                assert_eq!(gradient_again.to_vec1::<f32>()?, gradient.to_vec1::<f32>()?, "{what}");
            }
        }
        assert!(fitted >= 9, "{fitted} of the shapes fit {:?}", device.location());
    }
    Ok(())
}

#[test]
fn features_that_are_always_off_or_on_leave_the_cost_finite() -> Result<()> {
    for device in devices()? {
        for shape @ [v, h, m] in [[5, 3, 131], [64, 25, 10_000]] {
            let (theta, rows) = operands(shape)?;
            // Activations of 1e-87 and 1 − 1e-87, in f32 0 and 1.
            let mut theta = theta.to_vec1::<f32>()?;
            (theta[2 * v * h], theta[2 * v * h + 1]) = (200., -200.);
            let theta = Tensor::new(theta, &CPU)?;
            let of = cost(shape, Activation::Sigmoid);
            let (want, want_gradient) = sparse_cost_reference(&theta, &rows, of)?;
            let (got, gradient) = run(&theta, &rows, of, &device)?;
            let what = format!("{v}-{h}-{v}, {m} rows on {:?}", device.location());
            for (i, (got, want)) in got.to_vec1::<f64>()?.iter().zip(want.to_vec1::<f64>()?).enumerate() {
                let apart = (got - want).abs() / want.abs();
                assert!(apart <= TOLERANCE, "{what}: figure {i} is {got}, want {want}: {apart}");
            }
            let norm = |t: Tensor| t.sqr()?.sum_all()?.to_scalar::<f64>().map(f64::sqrt);
            let apart = norm((gradient.to_dtype(DType::F64)? - &want_gradient)?)? / norm(want_gradient)?;
            assert!(apart <= TOLERANCE, "{what}: the gradient is {apart} from the reference");
        }
    }
    Ok(())
}

#[test]
fn a_nan_in_a_row_shows_in_every_figure_that_sees_rows() -> Result<()> {
    for device in devices()? {
        let shape = [64, 25, 300];
        let (theta, rows) = operands(shape)?;
        let mut values = rows.flatten_all()?.to_vec1::<f32>()?;
        values[64 * 299 + 3] = f32::NAN;
        let rows = Tensor::from_vec(values, rows.dims(), &CPU)?;
        let (figures, gradient) = run(&theta, &rows, cost(shape, Activation::Sigmoid), &device)?;
        let is_nan: Vec<bool> = figures.to_vec1::<f64>()?.iter().map(|x| x.is_nan()).collect();
        assert_eq!(is_nan, [true, true, false, true], "on {:?}", device.location());
        assert!(gradient.to_vec1::<f32>()?.iter().all(|x| x.is_nan()), "on {:?}", device.location());
    }
    Ok(())
}

#[test]
fn operands_that_do_not_fit_are_refused() -> Result<()> {
    let (theta, rows) = operands([4, 3, 5])?;
    let (figures, gradient) = (Tensor::zeros(4, DType::F64, &CPU)?, theta.zeros_like()?);
    let of = cost([4, 3, 5], Activation::Sigmoid);
    let line = |e: candle::Error| e.to_string().lines().next().unwrap_or_default().to_owned();
    let none = rows.narrow(0, 0, 0)?;
    let cases = [
        (
            sparse_cost_(&figures, &gradient, &theta, &rows, SparseCost { n_visible: 5, ..of }),
            "sparse_cost_: rows must be [m, 5] with at least one row, for at least one feature, got [5, 4] for 3 features",
        ),
        (
            sparse_cost_(&figures, &gradient, &theta, &none, of),
            "sparse_cost_: rows must be [m, 4] with at least one row, for at least one feature, got [0, 4] for 3 features",
        ),
        (
            sparse_cost_(&figures, &gradient, &theta, &rows, SparseCost { decoder: Activation::Tanh, ..of }),
            "sparse_cost_: decoder must be Sigmoid or Identity, got Tanh",
        ),
        (
            sparse_cost_(&figures, &gradient, &gradient.narrow(0, 0, 9)?, &rows, of),
            "sparse_cost_: theta must have shape [31], got [9]",
        ),
    ];
    for (result, want) in cases {
        assert_eq!(result.map_err(line), Err(want.to_owned()));
    }
    Ok(())
}
