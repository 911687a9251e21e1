from __future__ import annotations

import pytest

from gpu_forecasters_plugin.forecasters.language_model.hardware import PRESETS, HardwareFacts, hardware_facts


@pytest.mark.parametrize(
    ("device", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100 16GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("h100", "H100"),
    ],
)
def test_a_driver_name_finds_its_gpu(device: str, preset: str) -> None:
    facts = hardware_facts(device)
    assert facts is not None and facts.name == preset


@pytest.mark.parametrize(
    "device",
    [
        "",
        "unknown",
        "none",
        "NVIDIA A100",  # 40 or 80 GB: nobody knows
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A1000",
        "GRID V100-16GB",
    ],
)
def test_a_device_that_no_preset_describes_has_no_facts(device: str) -> None:
    assert hardware_facts(device) is None


@pytest.mark.parametrize("facts", PRESETS, ids=lambda facts: facts.name)
def test_each_preset_is_found_by_its_own_name_and_is_of_a_gpu_s_size(facts: HardwareFacts) -> None:
    assert hardware_facts(facts.name) is facts
    assert facts.bus_width_bits % 64 == 0 and facts.threads_per_multiprocessor % 512 == 0
    rate = facts.bandwidth_gb_s * 8 / facts.bus_width_bits
    assert 1.5 < rate < 30, "gigabits per second and pin of any memory there is"
