"""Updates of many weights, and small training steps, by optimizers with all that an update can do."""

COUNT, SIZE = 100, 100_000  # Parameters, and weights of each

# The arguments of each rule, in pullback's class of that name and in torch's.
RULES = {
    "sgd": ("SGD", {}),
    "sgd, momentum": ("SGD", {"momentum": 0.9}),
    "sgd, nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", {}),
    "adam, amsgrad": ("Adam", {"amsgrad": True}),
    "adamw": ("AdamW", {}),
    "adamax": ("Adamax", {}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop, centered, momentum": ("RMSprop", {"centered": True, "momentum": 0.9}),
    "adagrad": ("Adagrad", {}),
    "adadelta": ("Adadelta", {}),
}
