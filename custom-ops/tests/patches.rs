//! Products of patches: equal to window after window, adjoint to each other, with right
//! derivatives.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor, Var};
use chandlery_ops::arrays::split_into_;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::images::{
    PatchDirection, PatchGrid, patch_cd_update_, patch_gradient_, patch_gradient_reference, patch_product,
    patch_product_, patch_product_reference,
};
use chandlery_ops::layers::{
    BiasGradients, CdOperands, CdUpdate, Factors, WeightStep, weight_step_reference,
};
use chandlery_ops::{Philox, Precision};

const CPU: Device = Device::Cpu;
const UP: PatchDirection = PatchDirection::Up;
const DOWN: PatchDirection = PatchDirection::Down;

fn grid([planes, height, width, depth]: [usize; 4], window: usize, stride: usize) -> PatchGrid {
    PatchGrid { planes, height, width, depth, window, stride }
}

/// One patch, stride 1, windows that the stride divides and that it does not, windows side by side,
/// colours, depth, a line of patches.
fn grids() -> [PatchGrid; 7] {
    [
        grid([1, 5, 5, 1], 5, 5),
        grid([1, 4, 6, 1], 3, 1),
        grid([1, 8, 12, 1], 4, 2),
        grid([1, 7, 11, 2], 3, 2),
        grid([3, 6, 4, 1], 2, 2),
        grid([2, 9, 7, 3], 5, 2),
        grid([1, 3, 9, 4], 3, 3),
    ]
}

fn worst(got: &Tensor, want: &Tensor) -> Result<f64> {
    (got.to_dtype(DType::F64)? - want.to_dtype(DType::F64)?)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

/// Weights, and the rows of both sides.
fn operands(grid: &PatchGrid, hidden: usize, batch: usize) -> Result<(Tensor, Tensor, Tensor)> {
    let philox = |stream| Philox::new(7, stream);
    Ok((
        normal((grid.n_patches(), hidden, grid.window_len()), &CPU, philox(0))?,
        normal((batch, grid.n_values()), &CPU, philox(1))?,
        normal((batch, grid.n_patches() * hidden), &CPU, philox(2))?,
    ))
}

#[test]
fn products_are_those_of_windows_one_after_the_other() -> Result<()> {
    for grid in grids() {
        for (hidden, batch) in [(1, 1), (3, 2), (5, 33)] {
            let (w, v, h) = operands(&grid, hidden, batch)?;
            // Sums of up to 150 terms of order 1.
            for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-5), (DType::BF16, 2e-5)] {
                let of = |t: &Tensor| t.to_dtype(dtype);
                let sum = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
                for (direction, x) in [(UP, &v), (DOWN, &h)] {
                    let want = patch_product_reference(
                        &of(x)?.to_dtype(DType::F64)?,
                        &of(&w)?.to_dtype(DType::F64)?,
                        &grid,
                        direction,
                    )?;
                    let out = Tensor::zeros(want.shape(), sum, &CPU)?;
                    let (x, w) = (of(x)?.unsqueeze(0)?, of(&w)?.unsqueeze(0)?);
                    patch_product_(&out, &x, &w, &grid, direction, 0.5)?;
                    let off = worst(&out, &(want * 0.5)?)?;
                    assert!(off < tolerance, "{grid:?} {hidden} {batch} {dtype:?} {direction:?}: {off:e}");
                }
                let start = normal(w.shape(), &CPU, Philox::new(8, 0))?.to_dtype(sum)?;
                let (alpha, beta) = (0.25, -2.);
                let got = start.copy()?;
                let factors = Factors::Host { alpha, beta };
                patch_gradient_(&got, &of(&h)?.unsqueeze(0)?, &of(&v)?.unsqueeze(0)?, &grid, factors)?;
                let wide = |t: &Tensor| of(t)?.to_dtype(DType::F64);
                let product = patch_gradient_reference(&wide(&h)?, &wide(&v)?, &grid)?;
                let want = ((product * alpha)? + (start.to_dtype(DType::F64)? * beta)?)?;
                let off = worst(&got, &want)?;
                assert!(off < tolerance, "gradient {grid:?} {hidden} {batch} {dtype:?}: {off:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn numbers_in_two_parts_are_their_sum() -> Result<()> {
    let grid = grid([1, 8, 12, 1], 4, 2);
    let (w, v, h) = operands(&grid, 8, 5)?;
    let parts = |t: &Tensor| -> Result<Tensor> {
        let out = Tensor::zeros([&[2], t.dims()].concat(), DType::F16, &CPU)?;
        split_into_(&out, t, 1.)?;
        Ok(out)
    };
    for (direction, x) in [(UP, &v), (DOWN, &h)] {
        let want = patch_product_reference(x, &w, &grid, direction)?;
        let out = want.zeros_like()?;
        patch_product_(&out, &parts(x)?, &parts(&w)?, &grid, direction, 1.)?;
        // Numbers of up to 4, 2⁻²² of each, in sums of up to 32.
        assert!(worst(&out, &want)? < 3e-5);
    }
    Ok(())
}

#[test]
fn down_is_the_adjoint_of_up_and_the_gradient_that_of_both() -> Result<()> {
    for grid in grids() {
        let (w, v, h) = operands(&grid, 4, 6)?;
        let wide = |t: &Tensor| t.to_dtype(DType::F64);
        let (w, v, h) = (wide(&w)?, wide(&v)?, wide(&h)?);
        let dot = |a: &Tensor, b: &Tensor| (a * b)?.sum_all()?.to_scalar::<f64>();
        let up = dot(&patch_product(&v, &w, &grid, UP)?, &h)?;
        let down = dot(&patch_product(&h, &w, &grid, DOWN)?, &v)?;
        let gradient = dot(&patch_gradient_reference(&h, &v, &grid)?, &w)?;
        assert!(
            (up - down).abs() < 1e-9 * up.abs().max(1.) && (up - gradient).abs() < 1e-9 * up.abs().max(1.)
        );
    }
    Ok(())
}

#[test]
fn derivatives_are_those_of_the_reference() -> Result<()> {
    for grid in grids() {
        let (w, v, h) = operands(&grid, 3, 4)?;
        for (direction, x) in [(UP, &v), (DOWN, &h)] {
            let vars = [x, &w].map(|t| t.to_dtype(DType::F64).and_then(|t| Var::from_tensor(&t)));
            let [x, w] = vars;
            let (x, w) = (x?, w?);
            // A function whose derivative depends on the product.
            let of = |y: Tensor| y.sin()?.sum_all()?.backward();
            let got = of(patch_product(&x, &w, &grid, direction)?)?;
            let want = of(patch_product_reference(&x, &w, &grid, direction)?)?;
            for t in [&x, &w] {
                let [got, want] = [&got, &want].map(|all| all.get(t).cloned().expect("a derivative"));
                assert!(worst(&got, &want)? < 1e-11, "{grid:?} {direction:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn an_update_is_the_gradient_and_the_step_one_after_the_other() -> Result<()> {
    for grid in grids() {
        let (hidden, batch) = (3, 5);
        let (w, ..) = operands(&grid, hidden, batch)?;
        let n_hidden = grid.n_patches() * hidden;
        let params = Tensor::stack(&[&w, &normal(w.shape(), &CPU, Philox::new(9, 0))?], 0)?;
        let h = uniform((1, 3, batch, n_hidden), &CPU, Philox::new(9, 1))?;
        let v = uniform((1, 2, batch, grid.n_values()), &CPU, Philox::new(9, 2))?;
        let scalars = Tensor::new(&[0.02f32, 0.9, 0.1], &CPU)?;
        let weights = WeightStep { l1: 0.01, l2: 0.1 };
        let both = |t: &Tensor| t.get(0)?.narrow(0, 0, 2)?.flatten(0, 1);
        let gradient = patch_gradient_reference(&both(&h)?, &both(&v)?, &grid)?;
        let velocity = ((params.get(1)? * 0.9f32 as f64)? + (gradient * 0.02f32 as f64)?)?;
        let want = weight_step_reference(&Tensor::stack(&[&w, &velocity], 0)?, &scalars, weights)?;
        let states = [n_hidden, grid.n_values()].map(|n| Tensor::zeros((4, n), DType::F32, &CPU));
        let [hidden_state, visible_state] = states;
        let (hidden_state, visible_state) = (hidden_state?, visible_state?);
        let (counter, copy) = (Tensor::new(&[3i64], &CPU)?, w.unsqueeze(0)?.zeros_like()?);
        let to = CdOperands {
            params: &params,
            velocity: None,
            copy: Some(&copy),
            hidden_state: &hidden_state,
            visible_state: &visible_state,
            counter: &counter,
        };
        let step = CdUpdate {
            weights,
            sparsity: None,
            visible_scale: None,
            copy_scale: 2.,
            advance: 11,
            precision: Precision::F32,
            biases: BiasGradients::BothPhases,
            rounding: None,
        };
        patch_cd_update_(to, &h, &v, &grid, &scalars, step)?;
        assert!(worst(&params, &want)? < 1e-6, "{grid:?}");
        assert!(worst(&copy.get(0)?, &(params.get(0)? * 2.)?)? == 0.);
        assert_eq!(counter.to_vec1::<i64>()?, [14]);
        let bias = ((v.get(0)?.get(1)?.sum(0)? - v.get(0)?.get(0)?.sum(0)?)? * (0.1 / batch as f64))?;
        assert!(worst(&visible_state.get(0)?, &bias)? < 1e-6);
    }
    Ok(())
}

#[test]
fn operands_that_do_not_fit_are_refused() -> Result<()> {
    let grid = grid([1, 8, 12, 1], 4, 2);
    let (w, v, _) = operands(&grid, 3, 2)?;
    let says = |x: &Tensor, w: &Tensor, grid: &PatchGrid| {
        let text = patch_product(x, w, grid, UP).err().map(|e| e.to_string()).unwrap_or_default();
        // With a backtrace, candle puts it below the message.
        text.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(
        says(&v, &w.narrow(0, 1, 14)?, &grid),
        "patch_product_: weight must have shape [parts, 15, hidden, 16], got [1, 14, 3, 16]"
    );
    assert!(says(&v.narrow(1, 0, 95)?, &w, &grid).starts_with(
        "patch_product_: x must be F32 of shape [parts, ..[2, 96]] with contiguous parts, two only in f16, got F32"
    ));
    assert!(says(&v, &w, &PatchGrid { width: 13, ..grid }).ends_with("its width must be 12 or 14, got 13"));
    Ok(())
}
