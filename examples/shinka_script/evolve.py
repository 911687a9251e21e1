"""A script that runs ShinkaEvolve, with the two lines that put the filter in front of its evaluations."""

import os
import sys

from gpu_forecasters_shinka import filtered
from shinka.core import EvolutionConfig, ShinkaEvolveRunner
from shinka.database import DatabaseConfig
from shinka.launch import LocalJobConfig

runner = ShinkaEvolveRunner(
    evo_config=EvolutionConfig(
        llm_models=[f"local/recorded-proposer@http://127.0.0.1:{os.environ.get('PORT', 8766)}/v1"],
        llm_dynamic_selection=None,
        llm_kwargs={"temperatures": 0.0, "max_tokens": 16384},
        embedding_model=None,
        meta_rec_interval=None,
        init_program_path="initial.py",
        results_dir=sys.argv[1],
        num_generations=16,  # measurements, now that the filter is there
    ),
    job_config=LocalJobConfig(eval_program_path="evaluate.py", time="00:01:00"),
    db_config=DatabaseConfig(num_islands=1),
    max_evaluation_jobs=2,
    verbose=False,
)
filtered(runner, "surrogate.yaml", measure_jobs=2, proposal_jobs=4)
runner.run()
