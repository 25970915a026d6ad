//! Tensors go to other libraries and come back as they were, on every device.
use candle::{DType, Result};
use chandlery_ops::Philox;
use chandlery_ops::core::dlpack::{Form, Lent, Taken, device_of, stream};
use chandlery_ops::core::{cuda_device, normal};
use chandlery_tests::{assert_same_bits, devices};

#[test]
fn a_tensor_that_is_lent_comes_back_with_the_same_bits() -> Result<()> {
    for device in devices()? {
        let t = (normal((37, 65), &device, Philox::new(1, 0))? * 50.)?;
        for dtype in [DType::U8, DType::U32, DType::I64, DType::BF16, DType::F16, DType::F32, DType::F64] {
            let t = t.abs()?.to_dtype(dtype)?;
            for t in [t.clone(), t.t()?, t.narrow(1, 3, 20)?] {
                for form in [Form::Plain, Form::Versioned] {
                    // A device of its own has a stream of its own.
                    let other = if device.is_cuda() { cuda_device(0)? } else { device.clone() };
                    let lent = Lent::new(&t)?;
                    lent.ready_on(stream(&other))?;
                    let at = lent.into_raw(form)?;
                    // SAFETY: it was just made, and is taken once.
                    let taken = unsafe { Taken::new(at, form) };
                    let back = taken.to_tensor(&other)?;
                    drop(taken);
                    assert_eq!(device_of(back.device())?, device_of(&device)?);
                    assert_same_bits("the copy", &back.to_dtype(DType::F32)?, &t.to_dtype(DType::F32)?)?;
                    assert_eq!(back.dtype(), dtype);
                }
            }
        }
    }
    Ok(())
}
