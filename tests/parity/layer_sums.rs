//! Layers between products in bf16, and the loss of outputs, are the bits of the CPU at any width
//! and distance of lines, and nothing beside their columns is written.
use candle::{D, DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::layers::{
    Activation, OutputLoss, layer_backward_sums_, layer_forward_sums_, output_loss_into_,
};
use chandlery_tests::{assert_same_bits, devices};

const CPU: Device = Device::Cpu;
/// Rows around the 32 lanes and the 256 rows that a thread has in flight; units around the blocks of
/// 4, 8 and 16, of which a GPU of 132 multiprocessors takes those of 8 from 1053 units on and those
/// of 16 from 2097 on, and around the 512 entries that a block of the loss has in flight.
const SHAPES: [(usize, usize); 11] = [
    (1, 1),
    (7, 501),
    (31, 3),
    (32, 16),
    (65, 77),
    (193, 785),
    (1025, 33),
    (257, 512),
    (33, 1061),
    (300, 2301),
    (2, 4099),
];
const ACTIVATIONS: [Activation; 4] =
    [Activation::Identity, Activation::Sigmoid, Activation::Relu, Activation::Tanh];

/// NaN in lines of `line`, and `[rows, n]` of it.
fn in_lines(device: &Device, rows: usize, n: usize, line: usize) -> Result<(Tensor, Tensor)> {
    let whole = Tensor::full(f32::NAN, (rows, line), device)?.to_dtype(DType::BF16)?;
    Ok((whole.clone(), whole.narrow(1, 0, n)?))
}

/// The numbers of `x` in lines of `line`.
fn put_in_lines(x: &Tensor, line: usize, device: &Device) -> Result<Tensor> {
    let (rows, n) = x.dims2()?;
    let beside = Tensor::full(f32::NAN, (rows, line - n), &CPU)?;
    Tensor::cat(&[x, &beside], 1)?.to_device(device)?.narrow(D::Minus1, 0, n)
}

#[test]
fn outputs_derivatives_and_sums_are_the_bits_of_the_cpu() -> Result<()> {
    for device in devices()? {
        for (rows, n) in SHAPES {
            let random = |shape: (usize, usize), at| normal(shape, &CPU, Philox::new(70, at));
            let (a, delta) = (random((rows, n), 0)?, random((rows, n), 1)?);
            let (bias, pull) = (random((1, n), 2)?.squeeze(0)?, random((1, n), 3)?.squeeze(0)?);
            for f in ACTIVATIONS {
                for (line, of_a) in [(n, n), (n.next_multiple_of(8), n.next_multiple_of(8)), (n + 5, n + 3)] {
                    let made = |device: &Device| -> Result<[Tensor; 4]> {
                        let (forward, out) = in_lines(device, rows, n, line)?;
                        let (backward, back) = in_lines(device, rows, n, line)?;
                        let sums = Tensor::full(f32::NAN, n, device)?;
                        let back_sums = Tensor::full(f32::NAN, n, device)?;
                        let (bias, pull) = (bias.to_device(device)?, pull.to_device(device)?);
                        let a = put_in_lines(&a, of_a, device)?;
                        let delta = put_in_lines(&delta, line, device)?;
                        layer_forward_sums_(&out, &sums, &a, &bias, f)?;
                        layer_backward_sums_(&back, &back_sums, &delta, &pull, (&a, &bias), f)?;
                        Ok([forward, backward, sums, back_sums])
                    };
                    let what = format!("[{rows}, {n}] in lines of {line}, {f:?}, on {:?}", device.location());
                    for (got, want) in made(&device)?.iter().zip(&made(&CPU)?) {
                        assert_same_bits(&what, &got.to_device(&CPU)?, want)?;
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn derivatives_of_a_loss_in_bf16_are_the_bits_of_the_cpu() -> Result<()> {
    let losses = ACTIVATIONS.map(OutputLoss::SquaredError).into_iter().chain([OutputLoss::CrossEntropy]);
    for device in devices()? {
        for (rows, n) in SHAPES {
            let pre = normal((rows, n), &CPU, Philox::new(71, 0))?;
            let (bias, target) =
                (normal(n, &CPU, Philox::new(71, 1))?, uniform((rows, n), &CPU, Philox::new(71, 2))?);
            for loss in losses.clone() {
                for (line, of_pre) in [(n, n), (n.next_multiple_of(8), n.next_multiple_of(8)), (n + 5, n + 3)]
                {
                    let made = |device: &Device| -> Result<[Tensor; 2]> {
                        let (whole, out) = in_lines(device, rows, n, line)?;
                        let gathered = Tensor::ones((2, rows), DType::F64, device)?;
                        let (bias, target) = (bias.to_device(device)?, target.to_device(device)?);
                        let pre = put_in_lines(&pre, of_pre, device)?;
                        output_loss_into_(&out, &pre, &bias, &target, loss, 3 * rows, &gathered)?;
                        // Sums of f32 numbers: as such they are exact.
                        Ok([whole, gathered.affine(1., -1.)?])
                    };
                    let what =
                        format!("[{rows}, {n}] in lines of {line}, {loss:?}, on {:?}", device.location());
                    for (got, want) in made(&device)?.iter().zip(&made(&CPU)?) {
                        assert_same_bits(&what, &got.to_device(&CPU)?, want)?;
                    }
                }
            }
        }
    }
    Ok(())
}
