#![allow(clippy::unwrap_used)]
use super::*;
use half::{bf16, f16};

/// Hands a tensor over and takes it back.
fn there_and_back(t: &Tensor, form: Form) -> Tensor {
    let at = Lent::new(t).unwrap().into_raw(form).unwrap();
    // SAFETY: it was just made, and is taken once.
    unsafe { Taken::new(at, form) }.to_tensor(&Device::Cpu).unwrap()
}

fn same(a: &Tensor, b: &Tensor) {
    assert_eq!((a.dims(), a.dtype()), (b.dims(), b.dtype()));
    let flat = |t: &Tensor| t.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap();
    assert_eq!(flat(a), flat(b));
}

#[test]
fn a_tensor_comes_back_as_it_went() {
    let t = Tensor::arange(0u32, 24, &Device::Cpu).unwrap().reshape((4, 6)).unwrap();
    for form in [Form::Plain, Form::Versioned] {
        for dtype in [DType::U8, DType::U32, DType::I64, DType::BF16, DType::F16, DType::F32, DType::F64] {
            let t = t.to_dtype(dtype).unwrap();
            same(&there_and_back(&t, form), &t);
            same(&there_and_back(&t.t().unwrap(), form), &t.t().unwrap());
            let part = t.narrow(0, 1, 2).unwrap().narrow(1, 2, 3).unwrap();
            same(&there_and_back(&part, form), &part);
        }
        let scalar = Tensor::new(3f32, &Device::Cpu).unwrap();
        same(&there_and_back(&scalar, form), &scalar);
        let empty = Tensor::zeros((0, 3), DType::F32, &Device::Cpu).unwrap();
        same(&there_and_back(&empty, form), &empty);
    }
}

#[test]
fn what_is_lent_is_the_memory_of_the_tensor() {
    let t = Tensor::arange(0f32, 6., &Device::Cpu).unwrap().reshape((2, 3)).unwrap();
    let at = Lent::new(&t).unwrap().into_raw(Form::Plain).unwrap();
    // SAFETY: it was just made.
    let view = unsafe { at.cast::<Plain>().as_ref() }.view;
    assert_eq!(view.data.addr(), address(&t).unwrap());
    drop(t);
    // SAFETY: the tensor lives until it is given back.
    assert_eq!(unsafe { view.data.cast::<f32>().add(5).read() }, 5.);
    // SAFETY: it is taken once.
    drop(unsafe { Taken::new(at, Form::Plain) });
}

/// What a library other than ours fills in.
fn taken<T>(
    values: &[T],
    code: (u8, u8),
    dims: &mut [i64],
    strides: Option<&mut [i64]>,
    offset: u64,
) -> Result<Tensor> {
    unsafe extern "C" fn delete(at: *mut Plain) {
        // SAFETY: made below.
        let lent = unsafe { Box::from_raw(at) };
        // SAFETY: a counter on the stack of the caller, which waits.
        unsafe { *lent.owner.cast::<u32>() += 1 }
    }
    let mut given_back = 0u32;
    let view = View {
        data: values.as_ptr().cast_mut().cast(),
        place: Place { kind: CPU, ordinal: 0 },
        rank: dims.len() as i32,
        dtype: Type { code: code.0, bits: code.1, lanes: 1 },
        shape: dims.as_mut_ptr(),
        strides: strides.map_or(std::ptr::null_mut(), |s| s.as_mut_ptr()),
        offset,
    };
    let _ = values.as_ptr().expose_provenance();
    let lent = Plain { view, owner: (&raw mut given_back).cast(), delete: Some(delete) };
    let at = NonNull::new(Box::into_raw(Box::new(lent)).cast()).unwrap();
    // SAFETY: it was just made, and is taken once.
    let copy = unsafe { Taken::new(at, Form::Plain) }.to_tensor(&Device::Cpu);
    assert_eq!(given_back, 1, "given back once, whatever came of it");
    copy
}

#[test]
fn any_strides_and_offsets_are_read() {
    let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let read = |dims: &mut [i64], strides: &mut [i64], offset| {
        taken(&values, (2, 32), dims, Some(strides), offset)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1::<f32>()
            .unwrap()
    };
    assert_eq!(read(&mut [2, 3], &mut [6, 2], 4), [1., 3., 5., 7., 9., 11.]);
    assert_eq!(read(&mut [3, 2], &mut [1, 3], 0), [0., 3., 1., 4., 2., 5.], "by columns");
    assert_eq!(read(&mut [2, 2], &mut [-3, -1], 16), [4., 3., 1., 0.], "from the end");
    assert_eq!(read(&mut [2, 2], &mut [0, 1], 0), [0., 1., 0., 1.], "a row twice");
    assert_eq!(read(&mut [2, 1, 2], &mut [4, 99, 1], 0), [0., 1., 4., 5.]);
    let all = taken(&values, (2, 32), &mut [3, 4], None, 0).unwrap();
    assert_eq!(all.to_vec2::<f32>().unwrap()[2], [8., 9., 10., 11.]);
    let halves = [f16::from_f32(1.5), f16::from_f32(-2.)];
    assert_eq!(taken(&halves, (2, 16), &mut [2], None, 0).unwrap().to_vec1::<f16>().unwrap(), halves);
    let brains = [bf16::from_f32(1.5), bf16::from_f32(-2.)];
    assert_eq!(taken(&brains, (4, 16), &mut [2], None, 0).unwrap().to_vec1::<bf16>().unwrap(), brains);
    // Bytes of floats at an odd address.
    let mut bytes = vec![0u8; 9];
    bytes[1..].copy_from_slice(&[1f32.to_ne_bytes(), 2f32.to_ne_bytes()].concat());
    assert_eq!(taken(&bytes, (2, 32), &mut [2], None, 1).unwrap().to_vec1::<f32>().unwrap(), [1., 2.]);
}

#[test]
fn types_versions_and_devices_that_are_not_known_are_refused() {
    let text = |e: Result<Tensor>| e.unwrap_err().to_string();
    assert!(text(taken(&[0u8; 8], (6, 8), &mut [8], None, 0)).contains("the type must be u8"));
    assert!(text(taken(&[0u8; 8], (2, 32), &mut [-2], None, 0)).contains("out of range"));
    let t = Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap();
    let at = Lent::new(&t).unwrap().into_raw(Form::Versioned).unwrap();
    // SAFETY: it was just made; version and device are put to others, which must be refused.
    let taken = unsafe {
        (*at.cast::<Versioned>().as_ptr()).version.major = 2;
        Taken::new(at, Form::Versioned)
    };
    assert!(text(taken.to_tensor(&Device::Cpu)).contains("the version must be 1, got 2.0"));
    drop(taken);
    for (kind, want) in [(CUDA, "a tensor on GPU 3 must be used on that GPU"), (10, "device type 10")] {
        let at = Lent::new(&t).unwrap().into_raw(Form::Plain).unwrap();
        // SAFETY: as above.
        let taken = unsafe {
            (*at.cast::<Plain>().as_ptr()).view.place = Place { kind, ordinal: 3 };
            Taken::new(at, Form::Plain)
        };
        let said = text(taken.to_tensor(&Device::Cpu));
        assert!(said.contains(want), "{said}");
    }
}
