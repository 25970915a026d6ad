//! Recordings that fail, panic, are broken by others or move between threads leave the device
//! usable and the results right.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::core::{Draws, Replay, advance_, bernoulli, normal, uniform_};
use chandlery_ops::layers::{Factors, gemm_, gemm_split_, gemm_split_makes_tensors};
use chandlery_ops::{Philox, Precision};
use chandlery_tests::{assert_same_bits, devices};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// A counter on the device that each run of a step raises by two, in two launches with something in
/// between.
struct Twice {
    counter: Tensor,
    replay: Replay,
}

/// What happens between the two launches; it is told how often the step was called before.
type Between = dyn Fn(u32) -> Result<()> + Send + Sync;

fn twice(device: &Device, between: Box<Between>) -> Result<Twice> {
    let counter = Tensor::zeros(1, DType::I64, device)?;
    let (of_step, calls) = (counter.clone(), AtomicU32::new(0));
    let replay = Replay::new(device, move || {
        advance_(&of_step, 1)?;
        between(calls.fetch_add(1, SeqCst))?;
        advance_(&of_step, 1)
    });
    Ok(Twice { counter, replay })
}

impl Twice {
    fn count(&self) -> Result<i64> {
        Ok(self.counter.to_vec1::<i64>()?[0])
    }
}

/// The call of a step that is recorded: two warm-up runs come before.
const RECORDED: u32 = 2;

/// Held alone by the test that ends all recordings of the GPU, shared by those whose steps must be
/// recorded at the first try.
static ENDING: RwLock<()> = RwLock::new(());

fn undisturbed() -> RwLockReadGuard<'static, ()> {
    ENDING.read().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn recordings_that_make_products_in_turn_do_not_spoil_each_other() -> Result<()> {
    let _undisturbed = undisturbed();
    for device in devices()? {
        // Long sums of few entries, which products split and gather in their workspace.
        let sizes = [(8, 8, 60_000), (16, 32, 9_000), (64, 64, 4_096), (1, 40, 30_000), (100, 3, 20_000)];
        let mut steps = vec![];
        for (i, (m, n, k)) in sizes.into_iter().enumerate() {
            let of = |shape: (usize, usize), stream| {
                normal(shape, &device, Philox::new(71, 3 * i as u64 + stream))
            };
            let (a, b) = (of((m, k), 0)?, of((k, n), 1)?);
            let c = Tensor::zeros((m, n), DType::F32, &device)?;
            let of_step = c.clone();
            let product = move || gemm_(&of_step, &a, &b, Factors::OVERWRITE, Precision::F32);
            product()?;
            steps.push((c.copy()?, c, Replay::new(&device, product)));
        }
        for _ in 0..20 {
            for (_, c, replay) in &mut steps {
                c.zero_set()?;
                replay.run()?;
            }
        }
        // One that is gone leaves what it shared to the others.
        steps.remove(1);
        for (want, c, replay) in &mut steps {
            c.zero_set()?;
            replay.run()?;
            assert_same_bits("a product", &c.to_device(&Device::Cpu)?, &want.to_device(&Device::Cpu)?)?;
        }
    }
    Ok(())
}

#[test]
fn products_in_parts_can_be_recorded_where_they_make_no_tensors() -> Result<()> {
    let _undisturbed = undisturbed();
    for device in devices()? {
        // Entries and terms around those from which on products are made in parts.
        for (m, n, k) in [(100, 33, 257), (4096, 1024, 255), (4096, 1024, 256), (2049, 2050, 300)] {
            let of = |shape: (usize, usize)| normal(shape, &device, Philox::new(72, 0));
            let (a, b) = (of((m, k))?, of((k, n))?);
            let c = Tensor::zeros((m, n), DType::F32, &device)?;
            let is_made_of_tensors = gemm_split_makes_tensors(&c, &a, &b)?;
            let mut replay = Replay::new(&device, move || gemm_split_(&c, &a, &b, Factors::OVERWRITE));
            let ran: Vec<bool> = (0..4).map(|_| replay.run().is_ok()).collect();
            let recorded = !is_made_of_tensors;
            assert_eq!(ran, [true, true, recorded, recorded], "[{m}, {n}, {k}] on {:?}", device.location());
        }
    }
    Ok(())
}

#[test]
fn a_step_that_fails_midway_can_be_run_again() -> Result<()> {
    let _undisturbed = undisturbed();
    for device in devices()? {
        let mut twice = twice(
            &device,
            Box::new(|call| match call {
                RECORDED => candle::bail!("on purpose"),
                _ => Ok(()),
            }),
        )?;
        twice.replay.run()?;
        twice.replay.run()?;
        let error = twice.replay.run().expect_err("the step fails").to_string();
        assert!(error.contains("on purpose"), "{error}");
        // A recording runs nothing; launch by launch the first half was done.
        let before = twice.count()?;
        assert_eq!(before, if device.is_cuda() { 4 } else { 5 });
        for _ in 0..5 {
            twice.replay.run()?;
        }
        assert_eq!(twice.count()?, before + 10, "on {:?}", device.location());
    }
    Ok(())
}

#[test]
fn a_step_that_panics_midway_leaves_the_device_usable() -> Result<()> {
    let _undisturbed = undisturbed();
    for device in devices()? {
        let panics = |call: u32| {
            assert_ne!(call, RECORDED, "on purpose");
            Ok(())
        };
        let mut twice = twice(&device, Box::new(panics))?;
        twice.replay.run()?;
        twice.replay.run()?;
        let panicked = catch_unwind(AssertUnwindSafe(|| twice.replay.run()));
        assert!(panicked.is_err());
        let before = twice.count()?;
        for _ in 0..5 {
            twice.replay.run()?;
        }
        assert_eq!(twice.count()?, before + 10, "on {:?}", device.location());
        // Launches of this thread go to the device again, not to the recording.
        let x = Tensor::zeros(1000, DType::F32, &device)?;
        uniform_(&x, Draws::At(Philox::new(1, 0)))?;
        assert!(x.sum_all()?.to_scalar::<f32>()? > 400.);
    }
    Ok(())
}

#[test]
fn a_recording_that_another_thread_ends_still_counts_each_run_once() -> Result<()> {
    let _alone = ENDING.write().unwrap_or_else(PoisonError::into_inner);
    for device in devices()? {
        if !device.is_cuda() {
            continue; // nothing is recorded there
        }
        let refused = Arc::new(AtomicU32::new(0));
        let seen = refused.clone();
        // candle's own way to open a device waits for the whole GPU, which ends recordings.
        let open = move |call: u32| {
            if call == RECORDED || call == RECORDED + 1 {
                let opened = std::thread::spawn(|| Device::new_cuda_with_stream(0)).join().expect("no panic");
                seen.fetch_add(opened.is_err().into(), SeqCst);
                // Dropping it panics when a thread of another test records just then.
                std::mem::forget(opened);
            }
            Ok(())
        };
        let mut twice = twice(&device, Box::new(open))?;
        for run in 1..10 {
            twice.replay.run()?;
            assert_eq!(twice.count()?, 2 * run);
        }
        assert!(refused.load(SeqCst) >= 1, "the other thread did not come between");
    }
    Ok(())
}

#[test]
fn devices_can_be_opened_and_dropped_while_others_record() -> Result<()> {
    for device in devices()? {
        if !device.is_cuda() {
            continue;
        }
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| {
                (0..8).try_for_each(|_| {
                    let device = chandlery_ops::core::cuda_device(0)?;
                    Tensor::rand(0f32, 1., 16, &device)?.sum_all()?.to_scalar::<f32>().map(drop)
                })
            });
            let recorders: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..100 {
                            let mut twice = twice(&device, Box::new(|_| Ok(())))?;
                            for _ in 0..4 {
                                twice.replay.run()?;
                            }
                            assert_eq!(twice.count()?, 8);
                        }
                        Ok::<_, candle::Error>(())
                    })
                })
                .collect();
            opener.join().expect("no panic")?;
            recorders.into_iter().try_for_each(|recorder| recorder.join().expect("no panic"))
        })?;
    }
    Ok(())
}

#[test]
fn a_device_is_given_out_again_when_neither_it_nor_a_tensor_on_it_is_left() -> Result<()> {
    if !devices()?.iter().any(Device::is_cuda) {
        return Ok(());
    }
    // Other tests open and drop devices meanwhile: one that is held is never given out, whatever
    // they do.
    let held = chandlery_ops::core::cuda_device(0)?;
    let tensor = Tensor::rand(0f32, 1., 4, &chandlery_ops::core::cuda_device(0)?)?;
    for _ in 0..20 {
        let device = chandlery_ops::core::cuda_device(0)?;
        assert!(!device.same_device(&held), "a device in use was given out");
        assert!(!device.same_device(tensor.device()), "the device of a tensor was given out");
        let draws = Tensor::rand(0f32, 1., 4, &device)?.to_vec1::<f32>()?;
        assert_eq!(
            draws,
            Tensor::rand(0f32, 1., 4, &chandlery_ops::core::cuda_device(0)?)?.to_vec1::<f32>()?
        );
    }
    assert_eq!(tensor.to_vec1::<f32>()?.len(), 4);
    Ok(())
}

#[test]
fn ops_that_make_tensors_are_refused_in_a_recorded_step() -> Result<()> {
    let _undisturbed = undisturbed();
    for device in devices()? {
        let (p, out) = (Tensor::zeros(8, DType::F32, &device)?, Tensor::zeros(1, DType::I64, &device)?);
        let of_step = p.clone();
        let mut replay = Replay::new(&device, move || {
            advance_(&out, 1)?;
            bernoulli(&of_step, Philox::new(0, 0)).map(drop)
        });
        replay.run()?;
        replay.run()?;
        match replay.run() {
            Ok(()) => assert!(device.is_cpu(), "recorded"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("bernoulli: cannot be part of a recorded step"), "{error}");
            }
        }
        // The thread goes on as before.
        normal(100, &device, Philox::new(0, 1))?.sum_all()?.to_scalar::<f32>()?;
    }
    Ok(())
}
