//! Softmax groups have the means of their formula, draw each class as often as its mean says, and
//! write where they are told.
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{Draws, advance_, normal};
use chandlery_ops::layers::{UnitPlanes, softmax_units_, softmax_units_reference};

const PLACE: Philox = Philox { seed: 11, stream: 22, offset: 33 };
const BOTH: UnitPlanes = UnitPlanes { mean: Some(0), mean_scale: 1., sample: Some(2), low: None };

fn rows(t: &Tensor) -> Result<Vec<Vec<f32>>> {
    t.to_vec2::<f32>()
}

#[test]
fn means_and_samples_are_those_of_the_reference() -> Result<()> {
    for (n, classes) in [(1, 1), (1, 2), (3, 10), (7, 3), (130, 10), (33, 257)] {
        let pre = (normal((n, classes), &Cpu, Philox::new(1, 0))? * 3.)?;
        let bias = normal(classes, &Cpu, Philox::new(1, 1))?;
        for philox in [None, Some(PLACE)] {
            let planes = Tensor::full(7f32, (3, n, classes), &Cpu)?;
            softmax_units_(&planes, &pre, &bias, BOTH, philox.map_or(Draws::Mode, Draws::At))?;
            let (mean, sample) = softmax_units_reference(&pre, &bias, philox)?;
            let worst = (planes.get(0)? - mean)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
            // Both round each of a few hundred sums and quotients below 1 to f32.
            assert!(worst < 2e-6, "[{n}, {classes}]: means differ by {worst:e}");
            assert_eq!(rows(&planes.get(2)?)?, rows(&sample)?, "[{n}, {classes}] {philox:?}");
            assert!(rows(&planes.get(1)?)?.concat().iter().all(|&x| x == 7.), "a plane nobody asked for");
        }
    }
    Ok(())
}

#[test]
fn each_class_is_drawn_as_often_as_its_mean_says() -> Result<()> {
    let n = 40_000;
    let probabilities = [0.5f64, 0.25, 0.2, 0.05, 0.];
    let pre = Tensor::new(&[probabilities.map(|p| p.ln() as f32)], &Cpu)?.repeat((n, 1))?;
    let planes = Tensor::zeros((1, n, 5), DType::F32, &Cpu)?;
    let out = UnitPlanes { sample: Some(0), ..UnitPlanes::default() };
    softmax_units_(&planes, &pre, &Tensor::zeros(5, DType::F32, &Cpu)?, out, Draws::At(PLACE))?;
    let sample = rows(&planes.get(0)?)?;
    assert!(
        sample.iter().all(|row| row.iter().sum::<f32>() == 1. && row.iter().all(|&x| x == 0. || x == 1.))
    );
    for (c, p) in probabilities.into_iter().enumerate() {
        let share = sample.iter().filter(|row| row[c] == 1.).count() as f64 / n as f64;
        // Five standard deviations of a share; a class of probability 0 never comes.
        let slack = 5. * (p * (1. - p) / n as f64).sqrt();
        assert!((share - p).abs() <= slack, "class {c}: drawn {share} of the time, want {p} ± {slack}");
    }
    Ok(())
}

#[test]
fn a_counter_moves_the_draws_on_and_the_scale_is_on_the_mean_alone() -> Result<()> {
    let pre = normal((9, 4), &Cpu, Philox::new(2, 0))?;
    let bias = Tensor::zeros(4, DType::F32, &Cpu)?;
    let run = |out: UnitPlanes, draws: Draws| -> Result<Tensor> {
        let planes = Tensor::zeros((3, 9, 4), DType::F32, &Cpu)?;
        softmax_units_(&planes, &pre, &bias, out, draws)?;
        Ok(planes)
    };
    let counter = Tensor::new(&[0i64], &Cpu)?;
    advance_(&counter, 5)?;
    let counted = run(BOTH, Draws::Counter { philox: PLACE, counter: &counter })?;
    let moved = run(BOTH, Draws::At(PLACE.advanced(20)))?;
    assert_eq!(rows(&counted.get(2)?)?, rows(&moved.get(2)?)?);
    let negated = run(UnitPlanes { mean_scale: -1., ..BOTH }, Draws::At(PLACE.advanced(20)))?;
    assert_eq!(rows(&negated.get(0)?)?, rows(&moved.get(0)?.neg()?)?);
    assert_eq!(rows(&negated.get(2)?)?, rows(&moved.get(2)?)?);
    Ok(())
}

#[test]
fn a_nan_is_seen_in_the_means_of_its_row_and_draws_no_class() -> Result<()> {
    let pre = Tensor::new(&[[0f32, f32::NAN, 1.], [f32::INFINITY, 0., 0.], [0., 3., 3.]], &Cpu)?;
    for draws in [Draws::Mode, Draws::At(PLACE)] {
        let planes = Tensor::full(7f32, (3, 3, 3), &Cpu)?;
        softmax_units_(&planes, &pre, &Tensor::zeros(3, DType::F32, &Cpu)?, BOTH, draws)?;
        let (mean, sample) = (rows(&planes.get(0)?)?, rows(&planes.get(2)?)?);
        for r in 0..2 {
            assert!(mean[r].iter().any(|x| x.is_nan()), "row {r}: {:?}", mean[r]);
            assert_eq!(sample[r], [0.; 3], "row {r}, {draws:?}");
        }
        assert!(mean[2].iter().all(|x| x.is_finite()) && sample[2].iter().sum::<f32>() == 1.);
        if matches!(draws, Draws::Mode) {
            assert_eq!(sample[2], [0., 1., 0.], "of equals the lowest");
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_with_both_shapes() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Cpu);
    let text = |planes: &[usize], pre: &[usize], bias: &[usize], out| -> Result<String> {
        let refused = softmax_units_(&zeros(planes)?, &zeros(pre)?, &zeros(bias)?, out, Draws::Mode);
        Ok(refused
            .map_or_else(|e| e.to_string(), |()| "accepted".to_owned())
            .lines()
            .next()
            .unwrap_or("")
            .to_owned())
    };
    assert_eq!(
        text(&[3, 4, 5], &[4, 6], &[5], BOTH)?,
        "softmax_units_: pre must have shape [4, 5] to go with planes [3, 4, 5], got [4, 6]"
    );
    assert_eq!(
        text(&[2, 4, 5], &[4, 5], &[5], BOTH)?,
        "softmax_units_: sample must name one of 2 planes, got 2"
    );
    assert!(text(&[2, 4, 5], &[4, 5], &[5], UnitPlanes::default())?.contains("out must name a plane"));
    assert_eq!(text(&[3, 0, 5], &[0, 5], &[5], BOTH)?, "accepted");
    Ok(())
}
