//! Dropout keeps the mean, both passes agree on who is left out, and what does not fit is said.
#![allow(clippy::unwrap_used)]
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::Draws;
use chandlery_ops::layers::{
    Activation, AdamStep, Dropout, OutputLoss, SgdStep, adam_step_, layer_backward_, layer_forward_,
    output_loss_, sgd_step_, softmax_loss_,
};

fn dropout(rate: f32) -> Option<Dropout<'static>> {
    Some(Dropout { rate, draws: Draws::At(Philox::new(3, 0)) })
}

#[test]
fn dropout_leaves_out_its_share_keeps_the_mean_and_both_passes_agree() -> Result<()> {
    const N: usize = 100_000;
    for rate in [0.2f32, 0.5, 0.9] {
        let a = Tensor::ones((N / 10, 10), DType::F32, &Cpu)?;
        layer_forward_(&a, None, Activation::Identity, dropout(rate))?;
        let delta = Tensor::ones((N / 10, 10), DType::F32, &Cpu)?;
        layer_backward_(&delta, &a, Activation::Identity, dropout(rate))?;
        // Of a product with 1 both passes leave the mask itself.
        let (a, delta) = (a.flatten_all()?.to_vec1::<f32>()?, delta.flatten_all()?.to_vec1::<f32>()?);
        assert_eq!(a, delta);
        let zeros = a.iter().filter(|a| **a == 0.).count() as f32 / N as f32;
        // The standard error of a share of 100,000 is at most .0016; four of them.
        assert!((zeros - rate).abs() < 0.0064, "{zeros} of {rate}");
        assert!(a.iter().all(|&a| a == 0. || a == 1. / (1. - rate)));
    }
    Ok(())
}

#[test]
fn a_rate_of_zero_changes_nothing() -> Result<()> {
    let x = Tensor::new(&[[0.5f32, -2., 3.]], &Cpu)?;
    let (a, b) = (x.copy()?, x.copy()?);
    layer_forward_(&a, None, Activation::Tanh, dropout(0.))?;
    layer_forward_(&b, None, Activation::Tanh, None)?;
    assert_eq!(a.to_vec2::<f32>()?, b.to_vec2::<f32>()?);
    Ok(())
}

#[test]
fn what_does_not_fit_is_said() -> Result<()> {
    let first =
        |result: Result<()>| result.unwrap_err().to_string().lines().next().unwrap_or_default().to_owned();
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Cpu);
    let (a, bias) = (zeros(&[2, 3])?, zeros(&[3])?);
    let forward = |bias: &Tensor, dropout| first(layer_forward_(&a, Some(bias), Activation::Relu, dropout));
    assert_eq!(forward(&zeros(&[2])?, None), "layer_forward_: bias must have shape [3], got [2]");
    assert_eq!(forward(&bias, dropout(1.)), "layer_forward_: dropout.rate must be in [0, 1), got 1");
    assert_eq!(
        forward(&bias, Some(Dropout { rate: 0.5, draws: Draws::Mode })),
        "layer_forward_: dropout.draws must be At or Counter, got Mode, which draws nothing"
    );
    assert_eq!(
        first(layer_backward_(&a, &zeros(&[3, 2])?, Activation::Relu, None)),
        "layer_backward_: output must have shape [2, 3], got [3, 2]"
    );
    let gathered = Tensor::zeros((2, 2), DType::F64, &Cpu)?;
    assert_eq!(
        first(softmax_loss_(&a, &bias, &Tensor::new(&[0i64, 1], &Cpu)?, 2, &gathered)),
        "softmax_loss_: labels must be u32, got I64"
    );
    assert_eq!(
        first(output_loss_(&a, &bias, &a.copy()?, OutputLoss::CrossEntropy, 2, &a)),
        "output_loss_: gathered must have shape [2, 2], got [2, 3]"
    );
    let (scalars, steps) = (zeros(&[2])?, Tensor::new(&[0i64], &Cpu)?);
    assert_eq!(
        first(adam_step_(&zeros(&[3, 5])?, &scalars, &steps, AdamStep::default(), .., 0, None)),
        "adam_step_: state must have shape [4, n] with n at least 1, got [3, 5]"
    );
    assert_eq!(
        first(sgd_step_(&zeros(&[3, 5])?, &scalars, SgdStep::default(), 6, None)),
        "sgd_step_: decayed must be at most the 5 parameters, got 6"
    );
    assert_eq!(
        first(sgd_step_(&zeros(&[3, 5])?, &scalars, SgdStep { weight_decay: -1. }, 0, None)),
        "sgd_step_: weight_decay must be at least 0, got -1"
    );
    Ok(())
}
