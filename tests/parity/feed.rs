//! Rows reach the device unchanged and in order, however they travel.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery_datasets::{DataOptions, Feed, FeedConfig, Split, open};
use chandlery_ops::Philox;
use chandlery_ops::core::{ChunkUpload, normal, uniform};
use chandlery_tests::{assert_same_bits, devices};
use std::collections::HashMap;

#[test]
fn chunks_arrive_in_order_while_the_device_computes() -> Result<()> {
    for device in devices()? {
        let (rows, cols) = (512, 300);
        let mut upload = ChunkUpload::new(&device, DType::U8, rows, cols)?;
        let fill = |chunk: u8| {
            move |bytes: &mut [u8]| {
                bytes.iter_mut().enumerate().for_each(|(i, b)| *b = (i % 251) as u8 ^ chunk);
                Ok(())
            }
        };
        let mut sums = Vec::new();
        upload.send(rows, &mut fill(0))?;
        for chunk in 0..40u8 {
            // The next one leaves before this one is used.
            upload.send(rows - usize::from(chunk), &mut fill(chunk + 1))?;
            let received = upload.receive()?;
            sums.push((received.dims().to_vec(), received.to_dtype(DType::F32)?.sum(0)?));
        }
        for (chunk, (dims, sum)) in sums.into_iter().enumerate() {
            let n = if chunk == 0 { rows } else { rows - (chunk - 1) };
            assert_eq!(dims, [n, cols]);
            let at = |i: usize| f32::from((i % 251) as u8 ^ chunk as u8);
            let want: Vec<f32> = (0..cols).map(|c| (0..n).map(|r| at(r * cols + c)).sum()).collect();
            assert_eq!(sum.to_vec1::<f32>()?, want, "chunk {chunk} on {:?}", device.location());
        }
        Ok::<(), candle::Error>(())?;
    }
    Ok(())
}

#[test]
fn a_split_larger_than_its_room_gives_the_minibatches_of_a_resident_one()
-> std::result::Result<(), Box<dyn std::error::Error>> {
    for device in devices()? {
        let rows: Vec<u8> = (0..1000 * 12).map(|i| (i * 7 % 256) as u8).collect();
        let split = Split::from_u8(rows, 12, Some((0..1000).collect()))?;
        let minibatches =
            |resident_bytes, device: &Device| -> std::result::Result<Vec<_>, Box<dyn std::error::Error>> {
                let config = FeedConfig { resident_bytes, chunk_bytes: 700, ..FeedConfig::new(20, 3) };
                let mut feed = Feed::new(&split, device, config)?;
                let mut all = Vec::new();
                for epoch in 0..3 {
                    feed.start_epoch(epoch, 0)?;
                    while let Some(batch) = feed.next()? {
                        let labels = batch.labels.ok_or("labels ride along")?.to_vec1::<u32>()?;
                        all.push((batch.rows.to_vec2::<u8>()?, labels));
                    }
                }
                Ok(all)
            };
        let streamed = minibatches(None, &device)?;
        assert_eq!(streamed.len(), 150);
        assert!(streamed == minibatches(Some(usize::MAX), &device)?, "streamed and resident differ");
        assert!(streamed == minibatches(None, &Device::Cpu)?, "{:?} and the CPU differ", device.location());
    }
    Ok(())
}

#[test]
fn rows_of_16_bits_from_a_buffer_are_the_same_on_every_device()
-> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    for dtype in [DType::BF16, DType::F16] {
        let path = folder.path().join("x.safetensors");
        let rows = uniform((1000, 12), &Device::Cpu, Philox::new(3, 0))?.to_dtype(dtype)?;
        candle::safetensors::save(&HashMap::from([("x", rows)]), &path)?;
        let options = DataOptions { stay: true, ..DataOptions::default() };
        let split = open(&path.display().to_string(), &options)?.train;
        assert_eq!(split.row_type().dtype(), dtype);
        let minibatches = |resident_bytes,
                           device: &Device|
         -> std::result::Result<Vec<_>, Box<dyn std::error::Error>> {
            let config =
                FeedConfig { resident_bytes, chunk_bytes: 2000, mix: Some(100), ..FeedConfig::new(20, 3) };
            let mut feed = Feed::new(&split, device, config)?;
            let mut all = Vec::new();
            for epoch in 0..3 {
                feed.start_epoch(epoch, 0)?;
                while let Some(batch) = feed.next()? {
                    assert_eq!(batch.rows.dtype(), dtype);
                    all.push(batch.rows.to_dtype(DType::F32)?.to_vec2::<f32>()?);
                }
            }
            Ok(all)
        };
        let want = minibatches(None, &Device::Cpu)?;
        assert_eq!(want.len(), 150);
        for device in devices()? {
            assert!(minibatches(None, &device)? == want, "streamed to {:?}", device.location());
            assert!(minibatches(Some(usize::MAX), &device)? == want, "resident on {:?}", device.location());
        }
    }
    Ok(())
}

#[test]
fn a_chunk_that_was_received_outlives_the_next_send() -> Result<()> {
    for device in devices()? {
        let mut upload = ChunkUpload::new(&device, DType::U8, 100_000, 50)?;
        let send = |upload: &mut ChunkUpload, chunk: u8| {
            upload.send(100_000, &mut |bytes| {
                bytes.fill(chunk);
                Ok(())
            })
        };
        send(&mut upload, 0)?;
        send(&mut upload, 1)?;
        for chunk in 0..20 {
            let received = upload.receive()?;
            // This one must not overwrite what was received.
            send(&mut upload, chunk + 2)?;
            device.synchronize()?;
            let entries = received.flatten_all()?.to_vec1::<u8>()?;
            assert!(entries.iter().all(|&entry| entry == chunk), "chunk {chunk} on {:?}", device.location());
        }
    }
    Ok(())
}

#[test]
fn rows_of_each_type_arrive_as_they_were_sent() -> Result<()> {
    let rows = normal((37, 5), &Device::Cpu, Philox::new(1, 0))?;
    for dtype in [DType::U8, DType::F32, DType::BF16, DType::F16] {
        let rows = (rows.abs()? * 50.)?.to_dtype(dtype)?;
        // One entry as bytes: u8 as it is, floats of 16 bits by their values, which f32 has as
        // well.
        let wide = rows.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let bytes: Vec<u8> = match dtype {
            DType::U8 => wide.iter().map(|&x| x as u8).collect(),
            DType::BF16 => wide.iter().flat_map(|&x| half::bf16::from_f32(x).to_ne_bytes()).collect(),
            DType::F16 => wide.iter().flat_map(|&x| half::f16::from_f32(x).to_ne_bytes()).collect(),
            _ => wide.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        };
        for device in devices()? {
            let mut upload = ChunkUpload::new(&device, dtype, 40, 5)?;
            upload.send(37, &mut |to| {
                to.copy_from_slice(&bytes);
                Ok(())
            })?;
            assert_same_bits(&format!("{dtype:?}"), &upload.receive()?, &rows)?;
        }
    }
    assert!(ChunkUpload::new(&Device::Cpu, DType::F64, 1, 1).is_err());
    Ok(())
}

#[test]
fn a_chunk_too_many_is_refused() -> Result<()> {
    for device in devices()? {
        let mut upload = ChunkUpload::new(&device, DType::F32, 2, 3)?;
        let first = |r: Result<()>| {
            r.expect_err("accepted").to_string().lines().next().unwrap_or_default().to_owned()
        };
        let mut fill = |bytes: &mut [u8]| {
            bytes.fill(0);
            Ok(())
        };
        assert_eq!(first(upload.send(3, &mut fill)), "ChunkUpload::send: n_rows must be 1 to 2, got 3");
        assert_eq!(first(upload.receive().map(|_: Tensor| ())), "ChunkUpload::receive: no chunk was sent");
        upload.send(2, &mut fill)?;
        upload.send(1, &mut fill)?;
        assert_eq!(
            first(upload.send(1, &mut fill)),
            "ChunkUpload::send: 2 chunks are waiting; receive one first"
        );
    }
    Ok(())
}

#[test]
fn rows_that_are_on_the_device_give_the_minibatches_of_those_that_go_there()
-> std::result::Result<(), Box<dyn std::error::Error>> {
    for device in devices()? {
        let rows = normal((103, 7), &Device::Cpu, Philox::new(5, 0))?;
        let bytes = (rows.abs()? * 20.)?.to_dtype(DType::U8)?;
        for rows in [rows.clone(), bytes, rows.to_dtype(DType::F16)?] {
            let config = || FeedConfig { chunk_bytes: 700, ..FeedConfig::new(20, 3) };
            let mut there = Feed::resident(&rows.to_device(&device)?, config())?;
            let mut sent = Feed::new(&Split::from_tensors(&rows, None)?, &device, config())?;
            assert!(there.is_resident());
            for epoch in 0..2 {
                there.start_epoch(epoch, 1)?;
                sent.start_epoch(epoch, 1)?;
                while let Some(want) = sent.next()? {
                    let got = there.next()?.ok_or("as many minibatches")?;
                    let f32 = |t: &Tensor| t.to_dtype(DType::F32);
                    assert_same_bits("a minibatch", &f32(&got.rows)?, &f32(&want.rows)?)?;
                }
                assert!(there.next()?.is_none());
            }
        }
        let refused =
            |rows: &Tensor| Feed::resident(rows, FeedConfig::in_order(2)).expect_err("accepted").to_string();
        let infinite = (rows.to_device(&device)? / 0.)?;
        assert!(refused(&infinite).contains("must be finite"));
        assert!(refused(&rows.flatten_all()?).contains("shape [n_samples, n_features]"));
        assert!(refused(&rows.to_dtype(DType::F64)?).contains("got F64"));
    }
    Ok(())
}
