//! Field values: NVML's numbered readings, which are read by id and, for NVLink, by link.

use super::ecc::Span;
use super::fault::{MemoryKind, Slowdown};
use super::gpu::Gpu;
use super::nvlink::LinkError;
use super::pcie::Direction;
use super::status::Status;

/// The value of a field with its C type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value {
    Unsigned(u32),
    Unsigned64(u64),
    Signed(i32),
}

/// The scope that means all links together.
pub(crate) const ALL_LINKS: u32 = u32::MAX;

/// Reads field `id`, in the numbering of the node's driver, with scope `scope`, at `t`.
pub(crate) fn read(gpu: &Gpu, id: u32, scope: u32, t: f64) -> Result<Value, Status> {
    match gpu.driver.at(t).field_id_v12(id) {
        id if gpu.without.contains(&id) => Err(Status::NotSupported),
        id @ (1..=31 | 142..=145 | 226 | 227 | 230) => memory_health(gpu, id, t),
        id @ (32..=59 | 84..=91 | 96..=119 | 132..=137 | 146..=168) => links(gpu, id, scope, t),
        id @ 138..=141 => traffic(gpu, id, scope, t),
        id @ 201..=222 => blackwell_links(gpu, id, scope, t),
        id @ (94 | 95 | 169 | 173..=183 | 197 | 198) => pcie(gpu, id, t),
        id @ (74..=83 | 185..=196 | 251..=253) => power_and_heat(gpu, id, scope, t),
        _ => Err(Status::NotSupported),
    }
}

// === Memory errors, rows, recovery ===

fn memory_health(gpu: &Gpu, id: u32, t: f64) -> Result<Value, Status> {
    if !gpu.profile.ecc {
        // If ECC exists but is off, its mode is readable, but there are no counts.
        return if id <= 2 {
            Ok(Value::Unsigned(0))
        } else {
            Err(Status::NotSupported)
        };
    }
    let dram = |span| gpu.ecc_in(MemoryKind::Dram, span, t);
    Ok(match id {
        1 | 2 => Value::Unsigned(1),
        3 => Value::Unsigned64(gpu.ecc(Span::Volatile, t).corrected),
        4 => Value::Unsigned64(gpu.ecc(Span::Volatile, t).uncorrected),
        5 => Value::Unsigned64(gpu.ecc(Span::Aggregate, t).corrected),
        6 => Value::Unsigned64(gpu.ecc(Span::Aggregate, t).uncorrected),
        11 => Value::Unsigned64(dram(Span::Volatile).corrected),
        12 => Value::Unsigned64(dram(Span::Volatile).uncorrected),
        22 => Value::Unsigned64(dram(Span::Aggregate).corrected),
        23 => Value::Unsigned64(dram(Span::Aggregate).uncorrected),
        // Caches, registers, textures: since Ampere all of them are in SRAM, which has no fields.
        7..=28 => Value::Unsigned64(0),
        142 | 145 | 227 => Value::Unsigned(0),
        143 => Value::Unsigned(gpu.rows_remapped(t)),
        144 => Value::Unsigned(u32::from(gpu.is_remap_pending(t))),
        226 | 230 => Value::Unsigned(gpu.recovery_action(t)),
        // Pages were retired up to Volta. Since then rows are remapped.
        _ => return Err(Status::NotSupported),
    })
}

// === NVLink ===

/// Returns the bytes of one link or all links, in KiB.
fn traffic(gpu: &Gpu, id: u32, scope: u32, t: f64) -> Result<Value, Status> {
    let data = bytes_of(gpu, scope, t)?;
    let bytes = if id >= 140 { Gpu::with_overhead(data) } else { data };
    Ok(Value::Unsigned64((bytes / 1024.0) as u64))
}

fn bytes_of(gpu: &Gpu, link: u32, t: f64) -> Result<f64, Status> {
    if link == ALL_LINKS {
        gpu.links_bytes(t)
    } else {
        gpu.link_bytes(link, t)
    }
}

fn links(gpu: &Gpu, id: u32, scope: u32, t: f64) -> Result<Value, Status> {
    let nvlink = gpu.nvlink()?;
    if let Some((link, kind)) = error_of_link(id) {
        return errors(gpu, link, kind, t);
    }
    Ok(match id {
        90 if gpu.profile.is_blackwell() => return Err(Status::NotSupported),
        90 => Value::Unsigned(nvlink.megabytes_per_second),
        84..=89 => speed(gpu, id - 84, t)?,
        132..=137 => speed(gpu, id - 132 + 6, t)?,
        91 | 147 => Value::Unsigned(nvlink.links),
        146 => gpu.nvlink_with(scope).map(|_| Value::Unsigned(scope))?,
        161..=163 if gpu.profile.is_blackwell() => return Err(Status::NotSupported),
        161 => errors(gpu, scope, LinkError::Replay, t)?,
        162 => errors(gpu, scope, LinkError::Recovery, t)?,
        163 => errors(gpu, scope, LinkError::CrcFlit, t)?,
        164 => speed(gpu, scope, t)?,
        165 => Value::Unsigned(u32::from(gpu.link_is_up(scope, t)?)),
        166 => gpu.nvlink_with(scope).map(|_| Value::Unsigned(nvlink.version))?,
        // Full power.
        167 => gpu.nvlink_with(scope).map(|_| Value::Unsigned(0))?,
        _ => return Err(Status::NotSupported),
    })
}

/// Returns the link and kind of an error field in the old numbering with one field per link: six links in one block, six more in a later
/// one, then totals.
fn error_of_link(id: u32) -> Option<(u32, LinkError)> {
    use LinkError::{CrcData, CrcFlit, EccData, Recovery, Replay};
    const FIRST_SIX: [(u32, LinkError); 4] = [(32, CrcFlit), (39, CrcData), (46, Replay), (53, Recovery)];
    const NEXT_SIX: [(u32, LinkError); 4] = [(96, CrcFlit), (102, CrcData), (108, Replay), (114, Recovery)];
    let old = FIRST_SIX
        .iter()
        .find(|(base, _)| (*base..=base + 6).contains(&id));
    let newer = NEXT_SIX.iter().find(|(base, _)| (*base..base + 6).contains(&id));
    match (old, newer) {
        (Some((base, kind)), _) if id == base + 6 => Some((ALL_LINKS, *kind)),
        (Some((base, kind)), _) => Some((id - base, *kind)),
        (None, Some((base, kind))) => Some((id - base + 6, *kind)),
        (None, None) if id == 160 => Some((ALL_LINKS, EccData)),
        (None, None) if (148..160).contains(&id) => Some((id - 148, EccData)),
        (None, None) => None,
    }
}

fn errors(gpu: &Gpu, link: u32, kind: LinkError, t: f64) -> Result<Value, Status> {
    let count = if link == ALL_LINKS {
        gpu.links_errors(kind, t)?
    } else {
        gpu.link_errors(link, kind, t)?
    };
    Ok(Value::Unsigned64(count))
}

/// Returns the speed of one link in one direction, in megabytes per second; 0 if it is down.
fn speed(gpu: &Gpu, link: u32, t: f64) -> Result<Value, Status> {
    let nvlink = gpu.nvlink_with(link)?;
    let up = gpu.link_is_up(link, t)?;
    Ok(Value::Unsigned(if up { nvlink.megabytes_per_second } else { 0 }))
}

/// Reads NVLink 5 fields: packets, bytes and symbol errors per link.
fn blackwell_links(gpu: &Gpu, id: u32, scope: u32, t: f64) -> Result<Value, Status> {
    /// The bytes of a full packet.
    const PACKET: f64 = 256.0;
    if !gpu.profile.is_blackwell() {
        return Err(Status::NotSupported);
    }
    let bytes = || bytes_of(gpu, scope, t);
    Ok(match id {
        201 | 203 => Value::Unsigned64((bytes()? / PACKET) as u64),
        202 | 204 => Value::Unsigned64(bytes()? as u64),
        // 213: recovered, 214: recovery failed, 215: both.
        213 => errors(gpu, scope, LinkError::Recovery, t)?,
        214 => Value::Unsigned64(u64::from(down(gpu, scope, t)?)),
        215 => match errors(gpu, scope, LinkError::Recovery, t)? {
            Value::Unsigned64(recovered) => Value::Unsigned64(recovered + u64::from(down(gpu, scope, t)?)),
            other => other,
        },
        208 | 211 | 219 | 221 => errors(gpu, scope, LinkError::CrcFlit, t)?,
        205..=212 => errors(gpu, scope, LinkError::CrcData, t)?,
        _ => return Err(Status::NotSupported),
    })
}

fn down(gpu: &Gpu, scope: u32, t: f64) -> Result<u32, Status> {
    if scope == ALL_LINKS {
        return Ok(gpu.nvlink()?.links - gpu.links_up(t));
    }
    gpu.link_is_up(scope, t).map(|up| u32::from(!up))
}

// === PCIe ===

fn pcie(gpu: &Gpu, id: u32, t: f64) -> Result<Value, Status> {
    Ok(match id {
        94 => Value::Unsigned(gpu.pcie_replays(t)),
        // Correctable errors and NAKs: each is one packet sent again.
        173 | 174 => Value::Unsigned(gpu.pcie_replays(t)),
        197 => Value::Unsigned64(gpu.pcie_bytes(Direction::Transmit, t)),
        198 => Value::Unsigned64(gpu.pcie_bytes(Direction::Receive, t)),
        _ => Value::Unsigned(0),
    })
}

// === Power and heat ===

fn power_and_heat(gpu: &Gpu, id: u32, scope: u32, t: f64) -> Result<Value, Status> {
    let profile = gpu.profile;
    let milliwatts = |watts: u32| Value::Unsigned(watts * 1_000);
    let braked = |by| {
        let seconds = gpu.since_load(|t| gpu.braked_seconds(by, t), t);
        Value::Unsigned64((seconds * 1e9) as u64)
    };
    // The difference to the maximum temperature, which is what "T.Limit" counts.
    let below = |limit: u32| Value::Signed(profile.temperature_max as i32 - limit as i32);
    Ok(match id {
        // Nanoseconds below the requested clocks, by cause. Other causes do not occur.
        74 => braked(Slowdown::Power),
        75 | 251 | 252 => braked(Slowdown::Thermal),
        253 => braked(Slowdown::PowerBrake),
        76..=81 => Value::Unsigned64(0),
        82 => Value::Unsigned(gpu.memory_temperature(t).ok_or(Status::NotSupported)?),
        83 => Value::Unsigned64(gpu.energy_mj(t)),
        // Scope 1 is the whole module, which only Grace superchips have.
        185 | 186 if scope != 0 => return Err(Status::NotSupported),
        185 => Value::Unsigned(gpu.power_mw(t, 1.0)),
        186 => Value::Unsigned(gpu.power_mw(t, 0.1)),
        187 => milliwatts(profile.power_min_w),
        188 => milliwatts(profile.power_max_w),
        189 | 190 | 192 => milliwatts(profile.power_default_w),
        191 => Value::Unsigned64(gpu.energy_mj(t)),
        193 => below(profile.temperature_shutdown),
        194 => below(profile.temperature_slowdown),
        195 => below(profile.memory_temperature_max.ok_or(Status::NotSupported)?),
        196 => below(profile.temperature_max),
        _ => return Err(Status::NotSupported),
    })
}
