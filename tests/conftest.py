"""What holds for every test: no example of a property is too slow, because machines are noisy and kernels load when first used."""

from hypothesis import settings

settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")
