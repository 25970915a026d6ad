//! The objective of a classifier is that of plain loops, at all sizes and on any number of threads.
#![allow(clippy::unwrap_used)]
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::layers::{SoftmaxObjective, softmax_objective, softmax_objective_reference};

/// Samples, labels, weight and bias.
fn problem(n: usize, d: usize, n_classes: usize, dtype: DType) -> Result<[Tensor; 4]> {
    let draw = |shape: (usize, usize), stream| normal(shape, &Cpu, Philox::new(4, stream))?.to_dtype(dtype);
    let labels: Vec<u32> = (0..n as u64).map(|i| Philox::new(4, 9).bits(i) % n_classes as u32).collect();
    let bias = draw((1, n_classes), 2)?.squeeze(0)?;
    Ok([draw((n, d), 0)?, Tensor::new(labels, &Cpu)?, draw((n_classes, d), 1)?, bias])
}

fn numbers(of: &SoftmaxObjective) -> Result<[Vec<f64>; 3]> {
    let flat = |t: &Tensor| t.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>();
    Ok([flat(&of.value)?, flat(&of.weight)?, flat(&of.bias)?])
}

#[test]
fn value_and_gradient_are_those_of_the_reference() -> Result<()> {
    for (dtype, eps) in [(DType::F32, f64::from(f32::EPSILON)), (DType::F64, f64::EPSILON)] {
        for (n, d, n_classes) in
            [(1, 1, 1), (2, 7, 2), (3, 16, 5), (301, 33, 6), (1000, 100, 10), (77, 1001, 3), (9000, 20, 11)]
        {
            let [x, labels, weight, bias] = problem(n, d, n_classes, dtype)?;
            let got = numbers(&softmax_objective(&x, &labels, &weight, &bias)?)?;
            let want = numbers(&softmax_objective_reference(&x, &labels, &weight, &bias)?)?;
            for (name, got, want) in
                [("value", &got[0], &want[0]), ("weight", &got[1], &want[1]), ("bias", &got[2], &want[2])]
            {
                // Logits are sums of d products, and entries of the gradient means of n.
                let scale = want.iter().fold(0f64, |a, b| a.max(b.abs())).max(1. / n as f64);
                let room = eps * (8. + 4. * (d as f64).sqrt() + (n as f64).sqrt()) * scale.max(0.02);
                for (got, want) in got.iter().zip(want) {
                    assert!(
                        (got - want).abs() <= room,
                        "{name} {dtype:?} [{n}, {d}], {n_classes}: {got} {want}"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_same_bits_on_any_number_of_threads() -> Result<()> {
    let [x, labels, weight, bias] = problem(5000, 130, 10, DType::F32)?;
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| numbers(&softmax_objective(&x, &labels, &weight, &bias)?))
    };
    let one = on(1)?;
    for threads in [2, 3, 8] {
        assert_eq!(on(threads)?, one, "{threads} threads");
    }
    Ok(())
}

#[test]
fn far_logits_are_exact_and_nan_stays() -> Result<()> {
    let x = Tensor::new(&[[1e4f32, 0.], [0., 1e4]], &Cpu)?;
    let (weight, bias) = (Tensor::new(&[[1f32, 0.], [0., 1.]], &Cpu)?, Tensor::new(&[0f32, 0.], &Cpu)?);
    let wrong = softmax_objective(&x, &Tensor::new(&[1u32, 0], &Cpu)?, &weight, &bias)?;
    assert_eq!(numbers(&wrong)?[0], [1e4]);
    let right = softmax_objective(&x, &Tensor::new(&[0u32, 1], &Cpu)?, &weight, &bias)?;
    assert_eq!(numbers(&right)?, [vec![0.], vec![0.; 4], vec![0.; 2]]);
    let x = Tensor::new(&[[f32::NAN, 0.], [0., 1.]], &Cpu)?;
    let of = softmax_objective(&x, &Tensor::new(&[0u32, 1], &Cpu)?, &weight, &bias)?;
    assert!(numbers(&of)?[0][0].is_nan());
    Ok(())
}

#[test]
fn what_does_not_fit_is_named() -> Result<()> {
    let [x, labels, weight, bias] = problem(4, 3, 2, DType::F32)?;
    let message = |x: &Tensor, labels: &Tensor, weight: &Tensor, bias: &Tensor| {
        softmax_objective(x, labels, weight, bias).unwrap_err().to_string()
    };
    for (got, want) in [
        (
            message(&x, &Tensor::new(&[0u32, 1, 2, 0], &Cpu)?, &weight, &bias),
            "labels must be below 2, the number of classes, got 2 in row 2",
        ),
        (message(&x, &labels.narrow(0, 0, 3)?, &weight, &bias), "labels must have shape [4]"),
        (
            message(&x, &labels, &weight.narrow(1, 0, 2)?.contiguous()?, &bias),
            "weight must have shape [2, 3]",
        ),
        (
            message(&x.narrow(0, 0, 0)?, &labels.narrow(0, 0, 0)?, &weight, &bias),
            "there must be a sample and a class, got 0 and 2",
        ),
        (message(&x.to_dtype(DType::F64)?, &labels, &weight, &bias), "weight must"),
    ] {
        assert!(got.contains(want), "{got}");
    }
    Ok(())
}
