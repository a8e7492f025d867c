//! The catalogue of all metrics that Lockstep produces: name, kind, unit, labels and help text. `/metrics`, the metadata API,
//! `docs/metrics.md` and the Grafana dashboards are generated from it. Units are Prometheus base units. A metric's name contains its unit
//! if Prometheus has a name for it.

use super::unit::Unit::{self, *};

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The value goes up and down.
    Gauge,
    /// The value only grows, except at restarts.
    Counter,
}

impl Kind {
    /// Returns the word for this type in the text exposition format.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        }
    }
}

/// One metric of the catalogue.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Name of the metric; the unit is its last part.
    pub name: &'static str,
    /// Gauge or counter.
    pub kind: Kind,
    /// Unit of its values.
    pub unit: Unit,
    /// Labels other than `node`, which every metric of an agent has.
    pub labels: &'static [&'static str],
    /// HELP text: what is measured and where the value comes from.
    pub help: &'static str,
}

const fn gauge(
    name: &'static str,
    unit: Unit,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    let kind = Kind::Gauge;
    Metric {
        name,
        kind,
        unit,
        labels,
        help,
    }
}

const fn counter(
    name: &'static str,
    unit: Unit,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric {
        kind: Kind::Counter,
        ..gauge(name, unit, labels, help)
    }
}

const GPU: &[&str] = &["gpu"];
const LINK: &[&str] = &["gpu", "link"];
const PORT: &[&str] = &["device", "port"];
const RUN: &[&str] = &["run"];
const RANK: &[&str] = &["run", "rank"];
const PEER: &[&str] = &["run", "interface", "peer"];
const RUN_LINK: &[&str] = &["run", "interface", "peer", "peer_node", "peer_interface"];
const CULPRIT: &[&str] = &["run", "rank", "phase", "cause"];
const COLLECTIVE: &[&str] = &["run", "rank", "comm", "function"];

/// All metrics, grouped by what they measure.
#[rustfmt::skip]
pub const CATALOGUE: &[Metric] = &[
    // GPU
    gauge("gpu_info", Info, &["gpu", "uuid", "name", "pci_bus_id", "driver_version"],
        "Always 1; what a GPU is."),
    gauge("gpu_up", Flag, GPU,
        "1 while the GPU answers NVML, 0 when it is lost or the driver does not respond."),
    gauge("gpu_memory_used_bytes", Bytes, GPU,
        "Frame buffer memory in use, without reserved memory (NVML memory v2)."),
    gauge("gpu_memory_total_bytes", Bytes, GPU, "Frame buffer memory (NVML memory v2)."),
    gauge("gpu_memory_reserved_bytes", Bytes, GPU,
        "Frame buffer memory kept by driver and firmware (NVML memory v2)."),
    gauge("gpu_utilization_ratio", Ratio, GPU,
        "Share of the last second in which any kernel ran; coarse (the driver's sample ring, else NVML utilization)."),
    gauge("gpu_memory_utilization_ratio", Ratio, GPU,
        "Share of the last second in which device memory was read or written (the driver's sample ring, else NVML utilization)."),
    gauge("gpu_encoder_utilization_ratio", Ratio, GPU, "Share of time the video encoder was busy."),
    gauge("gpu_decoder_utilization_ratio", Ratio, GPU, "Share of time the video decoder was busy."),
    gauge("gpu_graphics_active_ratio", Ratio, GPU,
        "Share of time any engine for graphics or compute was active (GPM; Hopper and newer)."),
    gauge("gpu_sm_active_ratio", Ratio, GPU,
        "Share of time a warp was active, averaged over SMs (GPM; Hopper and newer)."),
    gauge("gpu_sm_occupancy_ratio", Ratio, GPU,
        "Resident warps as a share of the maximum (GPM; Hopper and newer)."),
    gauge("gpu_tensor_active_ratio", Ratio, GPU,
        "Share of time a tensor core was active (GPM; Hopper and newer)."),
    gauge("gpu_dram_active_ratio", Ratio, GPU,
        "Device memory bandwidth in use as a share of the maximum (GPM; Hopper and newer)."),
    gauge("gpu_pipe_active_ratio", Ratio, &["gpu", "pipe"],
        "Share of time a pipe was active; pipe is integer, fp16, fp32, fp64 or tensor_hmma, _imma, _dfma, _dmma (GPM; Hopper and newer)."),
    gauge("gpu_sm_clock_hertz", Hertz, GPU, "SM clock."),
    gauge("gpu_sm_clock_max_hertz", Hertz, GPU, "Maximum SM clock of this product."),
    gauge("gpu_memory_clock_hertz", Hertz, GPU, "Memory clock."),
    gauge("gpu_power_watts", Watts, GPU, "Board power, averaged by the driver over about a second."),
    gauge("gpu_power_max_watts", Watts, GPU,
        "Highest board power in the last second (the driver's sample ring)."),
    gauge("gpu_power_limit_watts", Watts, GPU, "Enforced board power limit."),
    gauge("gpu_power_limit_default_watts", Watts, GPU, "Board power limit as the product ships."),
    gauge("gpu_power_limit_min_watts", Watts, GPU, "Lowest board power limit that can be set."),
    gauge("gpu_power_limit_max_watts", Watts, GPU, "Highest board power limit that can be set."),
    gauge("gpu_temperature_celsius", Celsius, GPU, "GPU core temperature."),
    gauge("gpu_memory_temperature_celsius", Celsius, GPU,
        "Device memory temperature, if the product has the sensor."),
    gauge("gpu_temperature_limit_celsius", Celsius, &["gpu", "type"],
        "Temperature limit; type is slowdown, shutdown, gpu_max or memory_max."),
    counter("gpu_energy_joules_total", Joules, GPU, "Energy used since the driver was loaded."),
    gauge("gpu_throttle", Flag, &["gpu", "reason"],
        "1 while the clocks are held down for this reason (NVML clocks event reasons)."),
    counter("gpu_throttle_seconds_total", Seconds, &["gpu", "reason"],
        "Time the clocks were held down for this reason since the driver was loaded; includes the time between two readings."),
    gauge("gpu_recovery_action", Code, GPU,
        "Recovery that the driver requests: 0 nothing, 1 GPU reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 IMEX."),
    counter("gpu_ecc_errors_total", Count, &["gpu", "type"],
        "ECC errors since the driver was loaded; type is corrected or uncorrected."),
    counter("gpu_ecc_lifetime_errors_total", Count, &["gpu", "type"],
        "ECC errors in the lifetime of the GPU; type is corrected or uncorrected."),
    counter("gpu_sram_ecc_errors_total", Count, &["gpu", "type"],
        "ECC errors in the chip's own memories since the driver was loaded; type is corrected, parity or sec_ded."),
    counter("gpu_sram_uncorrected_lifetime_errors_total", Count, &["gpu", "unit"],
        "Uncorrectable errors in the chip's own memories in its lifetime; unit is l2, sm, pcie, microcontroller or other."),
    gauge("gpu_sram_threshold_exceeded", Flag, GPU,
        "1 if the chip's own memories have more uncorrectable errors than NVIDIA allows."),
    gauge("gpu_remapped_rows", Count, &["gpu", "type"],
        "Device memory rows remapped; type is corrected, uncorrected, pending or failed."),
    gauge("gpu_retired_pages", Count, &["gpu", "type"],
        "Device memory pages taken out of use, before Ampere; type is corrected, uncorrected or pending."),
    counter("gpu_xid_errors_total", Count, &["gpu", "xid"],
        "Xid errors seen since the agent started, by NVML or in the kernel's log, each once."),
    counter("gpu_xid_judged_total", Count, &["gpu", "xid", "severity", "action", "cause"],
        "Xid errors judged in their context: severity, NVIDIA's action, and cause."),
    counter("nvswitch_sxid_errors_total", Count, &["nvswitch", "sxid", "severity", "action"],
        "SXid errors of the node's NVSwitches in the kernel's log since the agent started, judged by NVIDIA's list and the severity in the log line."),
    counter("gpu_pcie_replays_total", Count, GPU, "PCIe replays since the driver was loaded."),
    counter("gpu_pcie_errors_total", Count, &["gpu", "type"],
        "PCIe errors by type: correctable, non_fatal, fatal, recovery, receiver, nak_sent, nak_received, bad_tlp, bad_dllp, lcrc, lane, unsupported_request."),
    gauge("gpu_pcie_generation", Code, GPU, "Current PCIe generation; falls at idle by design."),
    gauge("gpu_pcie_generation_max", Code, GPU, "Highest PCIe generation that GPU and slot both support."),
    gauge("gpu_pcie_width", Count, GPU, "Current PCIe lanes."),
    gauge("gpu_pcie_width_max", Count, GPU, "Highest number of PCIe lanes that GPU and slot both support."),
    gauge("gpu_nvlinks_active", Count, GPU, "NVLinks that are up."),
    gauge("gpu_nvlinks", Count, GPU, "NVLinks this GPU has."),
    counter("gpu_nvlink_errors_total", Count, &["gpu", "type"],
        "NVLink errors summed over links; type is crc_flit, crc_data, ecc_data, replay or recovery, from NVLink 5 on receive, effective, symbol, recovery_successful or recovery_failed."),
    counter("gpu_nvlink_transmit_bytes_total", Bytes, &["gpu", "nvlink"],
        "Bytes sent over one NVLink since the driver was loaded; since the agent started if only rates are known."),
    counter("gpu_nvlink_receive_bytes_total", Bytes, &["gpu", "nvlink"],
        "Bytes received over one NVLink since the driver was loaded; since the agent started if only rates are known."),
    gauge("gpu_nvlink_up", Flag, &["gpu", "nvlink"],
        "1 if one NVLink is up, else 0; only for links that were down since the agent started."),
    counter("gpu_nvlink_link_errors_total", Count, &["gpu", "nvlink"],
        "Errors of one NVLink, all types together; only for links with errors."),
    gauge("gpu_fabric_info", Info, &["gpu", "cluster", "clique"],
        "Always 1; the NVLink domain across nodes that a GPU belongs to."),
    gauge("gpu_fabric_state", Code, GPU,
        "Registration with the NVLink fabric: 1 not started, 2 in progress, 3 completed."),
    gauge("gpu_fabric_status", Code, GPU,
        "Result of the registration with the NVLink fabric, as an NVML return code; 0 is success."),
    gauge("gpu_fabric_health", Code, GPU,
        "Health of the NVLink fabric: 1 healthy, 2 unhealthy, 3 limited capacity."),
    gauge("gpu_mig_info", Info, &["gpu", "instance", "uuid", "name"],
        "Always 1; a MIG instance of a GPU. instance is GPU instance and compute instance, like 7/0."),
    gauge("gpu_mig_memory_used_bytes", Bytes, &["gpu", "instance"], "Memory in use of a MIG instance."),
    gauge("gpu_mig_memory_total_bytes", Bytes, &["gpu", "instance"], "Memory of a MIG instance."),
    gauge("gpu_mig_sm_active_ratio", Ratio, &["gpu", "instance"],
        "Share of time a warp was active in a MIG instance (GPM; Hopper and newer)."),
    gauge("gpu_mig_sm_occupancy_ratio", Ratio, &["gpu", "instance"],
        "Resident warps of a MIG instance as a share of the maximum (GPM; Hopper and newer)."),
    gauge("gpu_mig_tensor_active_ratio", Ratio, &["gpu", "instance"],
        "Share of time a tensor core was active in a MIG instance (GPM; Hopper and newer)."),
    gauge("gpu_mig_dram_active_ratio", Ratio, &["gpu", "instance"],
        "Memory bandwidth in use by a MIG instance as a share of the maximum (GPM; Hopper and newer)."),
    gauge("gpu_processes", Count, GPU, "Compute processes on the GPU."),
    gauge("gpu_process_memory_bytes", Bytes, &["gpu", "pid", "process"],
        "Device memory of a compute process."),
    gauge("gpu_assignment_info", Info, &["gpu", "run", "rank", "slurm_job", "container", "pod", "pod_name", "namespace"],
        "Always 1; joins a GPU to the run, rank, Slurm job, container and pod (its uid, name and namespace) that uses it, as far as known."),
    gauge("gpu_run_info", Info, &["gpu", "run", "rank"],
        "Always 1; the rank of a run that works on a GPU, or did within ten minutes. Recorded by a rule."),
    gauge("gpu_busy_clock_ratio", Ratio, &["gpu", "run", "rank"],
        "SM clock of the last minute as a share of the product's maximum, for GPUs of runs that are busy at least half of the time. Recorded by a rule."),
    gauge("gpu_process_sm_ratio", Ratio, &["gpu", "pid"],
        "Share of the multiprocessors' time a process had in the last seconds."),
    gauge("gpu_burst_sm_active_ratio", Ratio, GPU,
        "gpu_sm_active_ratio ten times per second, around a critical event of the node only."),
    gauge("gpu_burst_tensor_active_ratio", Ratio, GPU,
        "gpu_tensor_active_ratio ten times per second, around a critical event of the node only."),
    gauge("gpu_burst_dram_active_ratio", Ratio, GPU,
        "gpu_dram_active_ratio ten times per second, around a critical event of the node only."),
    gauge("gpu_burst_power_watts", Watts, GPU,
        "Momentary board power ten times per second, around a critical event of the node only."),
    gauge("gpu_burst_transmit_bytes_per_second", BytesPerSecond, LINK,
        "Bytes per second sent over a kind of link, ten times per second, around a critical event of the node only."),
    gauge("gpu_burst_receive_bytes_per_second", BytesPerSecond, LINK,
        "Bytes per second received over a kind of link, ten times per second, around a critical event of the node only."),
    // links
    counter("link_transmit_bytes_total", Bytes, LINK,
        "Bytes sent over a kind of link; link is nvlink, pcie, ib or eth."),
    counter("link_receive_bytes_total", Bytes, LINK, "Bytes received over a kind of link."),
    gauge("link_bandwidth_bytes_per_second", BytesPerSecond, LINK,
        "Maximum bandwidth of a link in one direction."),
    gauge("link_utilization_ratio", Ratio, LINK,
        "Bytes per second of the busier direction as a share of the link's maximum."),
    // host
    counter("node_cpu_seconds_total", Seconds, &["mode"], "CPU time by mode, summed over CPUs."),
    gauge("node_up", Flag, &[],
        "1 while the node's agent is connected, 0 while it is not; absent after a planned stop. Written by the collector."),
    gauge("node_clock_offset_seconds", Seconds, &[],
        "The node's clock minus the collector's when the agent connected, if they differ by 30 s or more. Written by the collector."),
    gauge("node_cpus", Count, &[], "Logical processors."),
    gauge("node_load1", Number, &[], "Load average of the last minute."),
    gauge("node_memory_total_bytes", Bytes, &[], "Host memory."),
    gauge("node_memory_available_bytes", Bytes, &[], "Host memory available without swapping."),
    gauge("node_swap_used_bytes", Bytes, &[], "Swap in use."),
    gauge("node_filesystem_size_bytes", Bytes, &["mountpoint", "device"], "Size of a file system."),
    gauge("node_filesystem_available_bytes", Bytes, &["mountpoint", "device"],
        "Free space of a file system for ordinary users."),
    counter("node_disk_read_bytes_total", Bytes, &["device"], "Bytes read from a block device."),
    counter("node_disk_written_bytes_total", Bytes, &["device"], "Bytes written to a block device."),
    counter("node_disk_io_seconds_total", Seconds, &["device"], "Time a block device was busy."),
    counter("node_network_transmit_bytes_total", Bytes, &["device"], "Bytes sent by a network interface."),
    counter("node_network_receive_bytes_total", Bytes, &["device"], "Bytes received by a network interface."),
    gauge("node_network_speed_bytes_per_second", BytesPerSecond, &["device"],
        "Nominal speed of a network interface."),
    gauge("node_network_info", Info, &["device", "kind"],
        "Always 1; what an interface is: physical, ipoib, bond, vlan or virtual."),
    gauge("node_network_up", Flag, &["device"], "1 while a network interface has a carrier."),
    counter("node_network_errors_total", Count, &["device", "type"],
        "Packets of a network interface with errors; type is receive_error, transmit_error, receive_drop or transmit_drop."),
    gauge("rdma_port_info", Info, &["device", "port", "layer", "interface"],
        "Always 1; an RDMA port's link layer (fabric or ethernet) and the network interface of the same card."),
    gauge("rdma_port_up", Flag, PORT, "1 while an RDMA port is active."),
    gauge("rdma_port_bandwidth_bytes_per_second", BytesPerSecond, PORT,
        "Maximum bandwidth of an RDMA port in one direction, at the negotiated rate."),
    counter("rdma_port_transmit_bytes_total", Bytes, PORT, "Bytes sent by an RDMA port."),
    counter("rdma_port_receive_bytes_total", Bytes, PORT, "Bytes received by an RDMA port."),
    counter("rdma_port_transmit_wait_total", Count, PORT,
        "Ticks of the card in which an RDMA port had data to send and no credit from the other end."),
    counter("rdma_port_congestion_total", Count, &["device", "port", "type"],
        "Signs of congestion at an RDMA port; type is cnp_sent, cnp_handled, cnp_ignored or ecn_marked."),
    counter("rdma_port_errors_total", Count, &["device", "port", "type"],
        "Errors of an RDMA port by type: link_downed, symbol, out_of_sequence, ack_timeout, transmit_discard, …."),
    gauge("node_boot_time_seconds", Seconds, &[],
        "When the machine booted, in seconds since the Unix epoch."),
    // training
    gauge("train_info", Info, &["run", "rank", "attempt", "backend", "device", "torch", "python"],
        "Always 1 while a rank reports; what it runs on."),
    gauge("train_note", Info, &["run", "rank", "note"],
        "Always 1 while a rank reports; a part of its training that the probe cannot observe."),
    gauge("train_step", Count, RANK, "The last optimizer step a rank finished."),
    gauge("train_pool_steps", Count, RANK,
        "Steps in the sample: those up to train_step. Samples of all ranks end at multiples of a power of two."),
    gauge("train_step_seconds", Seconds, RANK, "Time of a step, mean over the steps in the sample."),
    gauge("train_step_seconds_max", Seconds, RANK, "Time of the longest step in the sample."),
    gauge("train_data_seconds", Seconds, RANK, "Time of a step spent waiting for the data loader."),
    gauge("train_data_seconds_max", Seconds, RANK, "Longest train_data_seconds of the steps in the sample."),
    gauge("train_data_wait_ratio", Ratio, RANK,
        "Share of each step that a rank waits for data, only while that is so long that it slows training down. Recorded by a rule."),
    gauge("train_forward_seconds", Seconds, RANK,
        "Time of a step in the forward pass, without exposed waits for other ranks."),
    gauge("train_forward_seconds_max", Seconds, RANK, "Longest train_forward_seconds of the steps in the sample."),
    gauge("train_backward_seconds", Seconds, RANK,
        "Time of a step in the backward pass, without exposed waits for other ranks."),
    gauge("train_backward_seconds_max", Seconds, RANK, "Longest train_backward_seconds of the steps in the sample."),
    gauge("train_optimizer_seconds", Seconds, RANK,
        "Time of a step in the optimizer, without exposed waits for other ranks."),
    gauge("train_optimizer_seconds_max", Seconds, RANK, "Longest train_optimizer_seconds of the steps in the sample."),
    gauge("train_host_seconds", Seconds, RANK,
        "Time of a step that no other part explains: the script's own code between loading, forward, backward and optimizer."),
    gauge("train_host_seconds_max", Seconds, RANK, "Longest train_host_seconds of the steps in the sample."),
    gauge("train_own_seconds", Seconds, RANK,
        "Forward, backward and optimizer of this rank together: mean of the last minute, without its slowest step. Recorded by a rule."),
    gauge("train_slow_rank_seconds", Seconds, RANK,
        "The same over half a minute, for ranks that take far longer than their peers, if no aligned pools are sent. Recorded by a rule."),
    gauge("train_sync_seconds", Seconds, RANK,
        "Exposed wait for other ranks in a step, under every strategy; hidden overlap does not count, nor do waits for neighbours in a pipeline."),
    gauge("train_sync_seconds_max", Seconds, RANK, "Longest train_sync_seconds of the steps in the sample."),
    gauge("train_bubble_seconds", Seconds, RANK,
        "Time of a step the rank waited for a single other rank: sends and receives, as in a pipeline."),
    gauge("train_compute_ratio", Ratio, RANK,
        "Share of a step that computes: forward, backward and optimizer. Absent if waits for other ranks are not measured, because they would be included."),
    gauge("train_loss", Number, RANK,
        "Loss of this rank: as the script logs it, else as given to backward, unscaled; NaN and infinities are kept."),
    gauge("train_loss_best", Number, RANK,
        "Lowest finite loss of this rank since the attempt began, or since the script began to log one."),
    gauge("train_loss_noise", Number, RANK,
        "How much the loss of this rank varies from step to step: 90th percentile of the last 256 differences, without explosions."),
    gauge("train_loss_own", Number, RANK,
        "Argument of backward, unscaled: the loss of this rank before any average over ranks. Mean over the steps in the sample; absent if the rank has no loss, as in most stages of a pipeline."),
    gauge("train_learning_rate", Number, RANK,
        "Learning rate of the optimizer; the highest if there are several parameter groups."),
    gauge("train_learning_rate_min", Number, RANK,
        "Lowest learning rate of the optimizer's parameter groups, if they differ."),
    gauge("train_grad_norm", Number, RANK,
        "Gradient norm before clipping: the largest in the sample, NaN if one is NaN. For a sharded run one series, computed from all ranks."),
    gauge("train_grad_norm_local_square", Number, RANK,
        "Square of this rank's part of a sharded gradient; the sum over all ranks is the square of the gradient norm."),
    gauge("train_grad_norm_own", Number, RANK,
        "Norm of this rank's own gradients before they are combined with those of other ranks, over at most eight parameters that are the same on all ranks, in sampled steps. Absent under FSDP1, in compiled code, and if only some ranks of the run combine their gradients."),
    gauge("train_parameters_checksum", Number, &["run", "rank", "replica_group"],
        "Checksum of the parameters that this rank shares with other ranks, at every 256th step, in the sample with that train_step. Ranks with the same replica_group, the lowest of their ranks, should have the same value. Absent if the rank shares no parameters, or if they are not plain dense tensors."),
    gauge("train_logged_value", Number, &["run", "rank", "name"],
        "A value that the script logs itself, through MLflow, Weights & Biases or TensorBoard."),
    gauge("train_samples_per_second", PerSecond, RANK, "Samples per second of this rank."),
    gauge("train_samples_per_second_best", PerSecond, RANK,
        "Highest median of a minute of this rank's samples per second in this attempt; known after the first minute."),
    gauge("train_throughput_ratio", Ratio, &["run"],
        "Samples per second of the run, medians of 45 s, as a share of the best minute of this attempt. Recorded by a rule."),
    gauge("train_sync_ratio", Ratio, &["run"],
        "Share of a step for which the rank that waits least waits for the others, medians of 30 s. Recorded by a rule."),
    gauge("train_tokens_per_second", PerSecond, RANK,
        "Tokens per second of this rank, if batches are integer sequences."),
    gauge("train_mfu_ratio", Ratio, RANK,
        "Model FLOPs utilization, a 6NT estimate: 6 times trained parameters times tokens per second, against the dense 16-bit peak of the GPU. Attention and recomputation are not counted, all experts of a mixture are. Absent without tokens, on GPUs whose peak is not known, and under tensor parallelism."),
    gauge("train_input_mean", Number, RANK,
        "Mean of the first tensor of this rank's batches (every n-th element of large ones), in the steps where it was measured."),
    gauge("train_input_deviation", Number, RANK, "Standard deviation of the elements of the same tensor."),
    gauge("train_input_nonfinite_ratio", Ratio, RANK,
        "Share of the elements of the same tensor that are NaN or infinite: the highest in the sample."),
    gauge("train_label_mean", Number, RANK,
        "Mean of the labels of this rank's batches: the tensor with that name, otherwise the last one, if a batch has several tensors."),
    gauge("train_label_deviation", Number, RANK, "Standard deviation of the elements of the same tensor."),
    gauge("train_label_top_ratio", Ratio, RANK,
        "Share of the most frequent class among the labels of this rank's batches, if they are whole numbers from 0 to 4,095. Mean over the steps where it was measured."),
    gauge("train_padding_ratio", Ratio, RANK,
        "Share of padding among the tokens of this rank's batches, if they have an attention_mask of zeros and ones. Mean over the steps where it was measured."),
    gauge("train_batch_samples", Count, RANK, "Samples of this rank in a step, mean over the steps in the sample."),
    gauge("train_batch_tokens", Count, RANK,
        "Tokens of this rank in a step, mean over the steps in the sample, if batches are integer sequences."),
    gauge("train_micro_batch", Count, RANK,
        "Samples of this rank in one forward and backward pass: a batch of its DataLoader. A step may have several."),
    counter("train_nonfinite_steps_total", Count, RANK,
        "Steps whose loss or gradient norm was NaN or infinite, without steps that a gradient scaler skipped for it."),
    gauge("train_nonfinite_since_step", Count, &["run", "rank", "value"],
        "First step of the present series of steps whose loss or gradient (value) is NaN or infinite; absent while they are finite. With value own_gradient: this rank's own gradients, while its loss was still finite."),
    counter("train_skipped_steps_total", Count, RANK, "Optimizer steps the gradient scaler skipped."),
    gauge("train_skipped_steps_in_a_row", Count, RANK,
        "Steps the gradient scaler has skipped since the last one that ended; present only if it has skipped several in a row."),
    gauge("train_loss_scale", Number, RANK, "Loss scale: the factor by which the gradient scaler multiplies the loss."),
    gauge("train_memory_allocated_bytes", Bytes, RANK,
        "Peak memory the CUDA allocator handed out since the process began, or since the script reset its statistics."),
    gauge("train_memory_current_bytes", Bytes, RANK,
        "Memory that tensors hold in the CUDA allocator at the end of a step; it grows only with a leak."),
    gauge("train_memory_reserved_bytes", Bytes, RANK,
        "Peak memory the CUDA allocator held since the process began, or since the script reset its statistics."),
    gauge("train_saved_tensor_bytes", Bytes, RANK,
        "Bytes of tensors kept for the backward pass, in the steps where that was measured."),
    gauge("train_memory_split_bytes", Bytes, RANK,
        "Unused memory in blocks of the CUDA allocator that are partly in use: fragmentation."),
    counter("train_memory_alloc_retries_total", Count, RANK,
        "Times the CUDA allocator had to empty its cache to get memory."),
    counter("train_cpu_seconds_total", Seconds, RANK, "CPU time of the rank's process, all its threads."),
    counter("train_run_delay_seconds_total", Seconds, RANK,
        "Time in which threads of the rank were ready to run but had no CPU, summed over its threads."),
    counter("train_major_faults_total", Count, RANK, "Page faults of the rank's process that had to read from a disk."),
    gauge("train_host_memory_bytes", Bytes, RANK, "Resident host memory of the rank's process."),
    counter("train_probe_dropped_total", Count, RANK,
        "Records the probe dropped because they were not read in time."),
    gauge("train_rpc_seconds", Seconds, RANK,
        "Time of a remote call as the training script measures it, without the time the other side delayed it: the median in a step."),
    gauge("train_rpc_seconds_max", Seconds, RANK, "The longest remote call in a step, as train_rpc_seconds."),
    gauge("train_rpc_buffer_depth", Count, RANK,
        "Gradients that waited on a parameter server: the maximum in a step."),
    gauge("train_gradient_staleness_steps", Count, RANK,
        "Updates of the weights between a gradient's computation and its use, mean over the gradients of a step."),
    gauge("train_pipeline_bubble_ratio", Ratio, RANK,
        "Share of a pipeline schedule's step in which the rank's stage computes neither forward nor backward."),
    gauge("train_last_step_age_seconds", Seconds, RANK,
        "Time since a rank finished its last step, by the node's clock."),
    gauge("train_phase", Count, RANK,
        "What the rank does, as its probe sees it: 0 starting, 1 torch imported, 2 rendezvous, 3 group made, 4 model wrapped, 5 data, 6 forward, 7 backward, 8 optimizer, 9 host code, 10 collective, 11 saving, 12 ending."),
    gauge("train_phase_age_seconds", Seconds, RANK, "How long the rank has been in this phase."),
    counter("train_moves_total", Count, RANK,
        "Batches fetched, backward passes begun and steps ended: grows while a rank makes progress, also if no step ends."),
    gauge("train_process_state", Count, RANK,
        "State of the rank's process in the kernel: 0 alive, 1 stopped by a signal or a debugger, 2 in an uninterruptible sleep in each of the last four readings, 3 ended."),
    gauge("train_save_seconds", Seconds, RANK,
        "Time of a step in which the rank was blocked by saving checkpoints, mean over the steps in the sample; absent without saves."),
    gauge("train_checkpoint_save_seconds", Seconds, RANK,
        "Time the last finished save of a checkpoint took, from beginning to end."),
    gauge("train_checkpoint_bytes", Bytes, RANK,
        "Bytes of the last saved checkpoint: the file, or the whole distributed checkpoint from the rank that knows it."),
    gauge("train_checkpoint_saving_seconds", Seconds, RANK,
        "How long the current save has blocked the rank; 0 if there is none."),
    counter("train_checkpoint_blocked_seconds_total", Seconds, RANK,
        "Time the rank was blocked by saving checkpoints."),
    counter("train_checkpoint_failures_total", Count, RANK, "Saves of checkpoints that failed."),
    gauge("train_checkpoint_failures_in_a_row", Count, RANK,
        "Saves of a checkpoint that failed since its last success; 0 after a success. Absent before the first save has ended."),
    counter("train_checkpoint_errors_total", Count, &["run", "rank", "errno"],
        "Saves of checkpoints that failed, by the error of the system: errno is ENOSPC, EDQUOT, EIO, …, and absent for other errors."),
    gauge("run_checkpoint_age_seconds", Seconds, RUN,
        "Time since the run's last complete checkpoint, or since the attempt began, as this node sees it."),
    gauge("run_checkpoint_interval_seconds", Seconds, RUN,
        "The usual time between complete checkpoints: the median of the last eight gaps."),
    gauge("run_checkpoint_bytes", Bytes, RUN, "Size of the last complete full checkpoint."),
    gauge("run_checkpoint_free_bytes", Bytes, RUN, "Free space of the file system on which the run saves its checkpoints."),
    counter("run_checkpoints_incomplete_total", Count, RUN,
        "Saves of this attempt that stayed incomplete."),
    gauge("run_state", Info, &["run", "state"],
        "Always 1: the state the run is in. Written by the collector, without a node, until an hour after the run's end."),
    counter("run_failed_attempts_total", Count, RUN,
        "Attempts of the run that have failed. Written by the collector, without a node."),
    counter("run_attempt_failures_total", Count, &["run", "cause"],
        "Attempts of the run that have failed, by cause, with the node where the failure began. Written by the collector."),
    gauge("run_stalled", Info, &["run", "cause", "rank"],
        "Always 1: a rank that makes no progress while the others wait (cause is stopped, uninterruptible or no_step); without rank and node when the culprit is unknown."),
    gauge("run_ended_info", Info, &["run", "cause", "rank"],
        "Always 1: how the run ended, with the rank and node where it began, for an hour after its end."),
    gauge("run_ranks", Count, &["run"], "Ranks of a run that run on this node."),
    // TCP connections between the nodes of a run: at most 64 peers per run and node, each while it has traffic.
    gauge("run_address_info", Info, &["run", "interface", "address"],
        "Always 1; an address of this node that connections of the run use."),
    gauge("run_peer_transmit_bytes_per_second", BytesPerSecond, PEER,
        "Bytes that ranks on this node sent to a peer by TCP and that the peer acknowledged."),
    gauge("run_peer_receive_bytes_per_second", BytesPerSecond, PEER,
        "Bytes that ranks on this node received from a peer by TCP."),
    gauge("run_peer_busy_ratio", Ratio, PEER,
        "Share of the time in which data to a peer waited for the network, on the busiest connection; without waits for the peer's window or the send buffer."),
    gauge("run_peer_unsent_bytes", Bytes, PEER,
        "Bytes that ranks have written to their connections with a peer and that the kernel has not sent yet."),
    gauge("run_peer_application_limited", Flag, PEER,
        "1 if the rank, not the network, limited the rate of the busiest connection to a peer when the kernel last measured it."),
    gauge("run_peer_retransmits_per_second", PerSecond, PEER,
        "TCP segments to a peer that were sent again."),
    gauge("run_peer_delivery_bytes_per_second", BytesPerSecond, PEER,
        "Bytes delivered to a peer per second of busy time, if that was at least 0.1 s; if connections take turns, an upper bound."),
    gauge("run_peer_delivery_bytes_per_second_best", BytesPerSecond, PEER,
        "The highest such rate of this attempt; if connections overlap, a lower bound."),
    gauge("run_link_busy_ratio", Ratio, RUN_LINK,
        "run_peer_busy_ratio between two nodes of a run, average of 30 s, with the node and the interface of the peer. Recorded by a rule."),
    gauge("run_slow_link_bytes_per_second", BytesPerSecond, RUN_LINK,
        "Rate while busy of a link that is busy, has unsent data and delivers less than 40 % of its best. Recorded by a rule."),
    gauge("run_slow_link_node", Count, &["run"],
        "Number of slow links of a run that begin or end at a node, for a node at which all of them do. Recorded by a rule."),
    // collectives
    // Findings of the analysers. The collector writes them while they hold.
    gauge("diagnosis_hang_seconds", Seconds, CULPRIT,
        "How long a run has made no progress because of a rank, or of all ranks of a node (without rank); without rank and node when no culprit is known."),
    gauge("diagnosis_alone_seconds", Seconds, CULPRIT,
        "How long all ranks have waited for one rank that does something by itself, such as an evaluation or a save."),
    gauge("diagnosis_alone_longest_seconds", Seconds, CULPRIT,
        "The longest such time before in the attempt; present together with diagnosis_alone_seconds."),
    gauge("diagnosis_straggler_ratio", Ratio, CULPRIT,
        "Share of the run's time that a straggler costs, over its last 16 pools of steps."),
    gauge("diagnosis_straggler_lead_seconds", Seconds, CULPRIT,
        "Seconds of a step for which the peers of a straggler wait and it does not: the median of its last 16 pools."),
    gauge("diagnosis_straggler_persistence_ratio", Ratio, CULPRIT,
        "Pools in which the peers waited for a straggler, as a share of the number that makes it one: 12 of 16, or 8 in a row with twice the lead."),
    gauge("diagnosis_rare_stall_ratio", Ratio, CULPRIT,
        "Share of the run's time in the last two minutes that was lost because a rank stalled now and then."),
    gauge("diagnosis_loss_rise_ratio", Ratio, &["run", "cause"],
        "Share of the run's progress that is lost, because its loss rises and does not recover; for a run without progress, by how much its loss exceeds the first one."),
    gauge("diagnosis_loss_plateau_seconds", Seconds, &["run", "cause"],
        "How long the run's loss has not fallen, for at least 1,000 steps; cause is never_fell or stopped_falling."),
    gauge("diagnosis_uneven_loss_ratio", Ratio, CULPRIT,
        "Difference between a rank's loss and that of its peers, as a share of theirs; for two ranks without rank and node."),
    gauge("diagnosis_uneven_learning_rate_ratio", Ratio, CULPRIT,
        "Difference between a rank's learning rate and that of its peers, as a share of the larger; for two ranks without rank and node."),
    gauge("diagnosis_gradient_outlier_factor", Number, CULPRIT,
        "Norm of a rank's own gradients divided by the median of its peers, while it is far larger than theirs in all measured windows."),
    gauge("diagnosis_replicas_differ_ratio", Ratio, CULPRIT,
        "Share of the ranks that should have the same parameters and have others, in three checks in a row; without rank and node if two sides are equally large."),
    gauge("diagnosis_node_blind_seconds", Seconds, &["run", "cause"],
        "How long the collector has received nothing from a node of a run. There are no findings about its ranks during this time."),
    gauge("diagnosis_suspect", Flag, &["run", "rank", "phase", "cause", "kind"],
        "1 while only one measurement supports a finding: it is shown, but causes no alert."),
    counter("nccl_collectives_total", Count, COLLECTIVE,
        "Collectives and transfers a rank put into a stream, by communicator and function (nccl-probe)."),
    counter("nccl_bytes_total", Bytes, COLLECTIVE,
        "Bytes of these calls: count times the size of an element (nccl-probe)."),
    gauge("nccl_sequence", Count, COLLECTIVE,
        "Number of the last collective a rank put into a stream; a rank whose number stays behind its peers' hangs or is late (nccl-probe)."),
    gauge("nccl_collective_seconds", Seconds, COLLECTIVE,
        "Mean time of the timed kernels on the GPU, including waits for later ranks: the late rank has the shortest (nccl-probe)."),
    gauge("nccl_bus_bandwidth_bytes_per_second", BytesPerSecond, COLLECTIVE,
        "Bytes per second over the busiest link while timed kernels ran, by the factors of nccl-tests (nccl-probe)."),
    gauge("nccl_arrival_lateness_seconds", Seconds, &["run", "rank", "comm", "by"],
        "Median time by which a rank arrives at collectives after the first rank of this node; by is kernel or enqueue (nccl-probe)."),
    counter("nccl_events_dropped_total", Count, RANK,
        "Events, timings, communicators and datagrams that nccl-probe lost; totals of calls and bytes are complete."),
    gauge("nccl_info", Info, &["run", "rank", "version", "abi"],
        "Always 1; the versions of NCCL and of its profiler interface that nccl-probe found."),
    gauge("nccl_probe_state", Flag, &["run", "state"],
        "1 for the state of nccl-probe in a run that requests it: waiting, reporting, other_plugin or missing."),
    gauge("nccl_ras_communicators", Count, &["run"], "Communicators of the job that NCCL RAS reports."),
    gauge("nccl_ras_ranks", Count, &["run"], "Ranks that answered NCCL RAS, summed over communicators."),
    gauge("nccl_ras_missing_ranks", Count, &["run"],
        "Ranks that NCCL RAS could not reach, summed over communicators."),
    gauge("nccl_ras_failed_ranks", Count, &["run"],
        "Ranks whose status is an error or an abort, summed over communicators (NCCL RAS)."),
    gauge("nccl_ras_sequence_spread", Count, &["run"],
        "Maximum number of collectives of one function by which a rank is behind another of its communicator; a value that stays is a hang (NCCL RAS)."),
    // the agent itself
    gauge("agent_info", Info, &["version"], "Always 1; the agent's version."),
    gauge("lockstep_agent_nvml_up", Flag, &[], "1 while NVML answers, 0 while a call exceeds its time limit."),
    counter("lockstep_agent_nvml_call_seconds_total", Seconds, &[], "Time spent in NVML calls."),
    counter("lockstep_agent_nvml_calls_total", Count, &[], "NVML calls made."),
    counter("lockstep_agent_samples_total", Count, &[],
        "Values that the agent's readers read, including those kept ten times per second for faults."),
    gauge("lockstep_agent_simulated", Info, &["spec"],
        "Always 1; present only while this node's GPUs are simulated, which spec describes."),
    gauge("lockstep_agent_nvml_call_p99_seconds", Seconds, &[],
        "99th percentile of the time of NVML calls."),
    gauge("lockstep_agent_nvml_round_seconds", Seconds, &[],
        "Time the last reading of all GPUs spent in NVML calls."),
    gauge("lockstep_agent_nvml_period_seconds", Seconds, &[],
        "Time between two readings of all GPUs; it doubles while they cost too much."),
    gauge("lockstep_agent_burst_period_seconds", Seconds, &[],
        "Time between two readings of the burst; 0 while there is none."),
    gauge("lockstep_agent_gpus_released", Flag, &[],
        "1 while the agent does not use the GPUs, on request."),
    counter("lockstep_agent_rounds_late_total", Count, &[],
        "Rounds that readers skipped because the previous one had not finished."),
    gauge("lockstep_agent_series", Count, &[], "Series that this node has now."),
    gauge("lockstep_agent_readings_cut", Code, &[],
        "0 when all is read, 1 without the burst, 2 without processes either: the agent's memory is at its limit."),
    gauge("lockstep_agent_spool_bytes", Bytes, &[],
        "Bytes in the on-disk spool that the collector has not acknowledged."),
    counter("lockstep_agent_spool_dropped_samples_total", Count, &[],
        "Samples dropped because the spool was full."),
    gauge("lockstep_agent_clock_offset_seconds", Seconds, &[],
        "The node's clock minus the collector's, measured by the fastest exchange of the last minute; the error is at most half the delay."),
    gauge("lockstep_agent_clock_delay_seconds", Seconds, &[],
        "Time on the network of the exchange that measured the clock."),
    gauge("lockstep_agent_memory_bytes", Bytes, &[], "Resident memory of the agent."),
    counter("lockstep_agent_cpu_seconds_total", Seconds, &[], "CPU time of the agent."),
];

/// Returns the metric with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Metric> {
    CATALOGUE.iter().find(|metric| metric.name == name)
}

/// Returns the unit of a metric. In a constant, an unknown name is a compile error.
///
/// # Panics
/// Panics if there is no such metric.
#[must_use]
pub const fn unit_of(name: &str) -> Unit {
    let mut at = 0;
    while !is_same(CATALOGUE[at].name.as_bytes(), name.as_bytes()) {
        at += 1;
    }
    CATALOGUE[at].unit
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    match (one, other) {
        ([], []) => true,
        ([first, one @ ..], [second, other @ ..]) => *first == *second && is_same(one, other),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::labels::{is_label_name, is_metric_name};

    #[test]
    fn names_are_unique_and_say_kind_and_unit() {
        let mut seen = std::collections::BTreeSet::new();
        for metric in CATALOGUE {
            let name = metric.name;
            assert!(seen.insert(name), "{name} twice");
            assert!(is_metric_name(name) && metric.labels.iter().all(|name| is_label_name(name)));
            assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(metric.help.ends_with('.'), "{name}");
            assert_eq!(metric.unit == Info, metric.help.starts_with("Always 1"), "{name}");
            let bare = name
                .trim_end_matches("_total")
                .trim_end_matches("_max")
                .trim_end_matches("_best");
            let ending = Unit::ALL
                .into_iter()
                .filter_map(Unit::suffix)
                .find(|unit| bare.ends_with(unit));
            assert_eq!(metric.unit.suffix(), ending, "{name}");
            assert_eq!(unit_of(name), metric.unit);
        }
    }
}
