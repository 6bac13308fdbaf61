"""Programs that `pullback train` runs. They use the public API only, as a script of your own would.

`catalogue` lists them with their options. Each has a module, whose function `train(run, …)` trains a network in a `Run` and returns
a `Result`. `files` writes a Result to a folder.

There are also networks to read and to measure, which no command runs (`mlperf_tiny`).
"""
